"""GPU twins of the kernels, with the same stems; imported only when a CUDA tensor asks for one."""
