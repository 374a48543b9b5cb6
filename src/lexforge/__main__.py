"""`python -m lexforge` and `accelerate launch -m lexforge`, the same as the command `lexforge`."""

from lexforge.cli import main

if __name__ == "__main__":
    main()
