"""What lies on the disk: whole-file writes, manifests, files of tensors, blocks of rows, locks."""
