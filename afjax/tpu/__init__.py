"""What a step costs on a TPU, read from the program that the TPU compiler makes for it; no TPU is needed."""
