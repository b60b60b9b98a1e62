"""The stream of what kernels do in Triton's interpreter, and what watches their memory in it.

Import only once TRITON_INTERPRET=1 is in the environment: triton is imported here.
"""
