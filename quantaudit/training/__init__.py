"""Training: the program that makes the embedded model; quantization-aware training and recipes build on it."""
