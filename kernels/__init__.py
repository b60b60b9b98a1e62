"""GPU kernels that gradprobe checks out of the box, one folder per language."""
