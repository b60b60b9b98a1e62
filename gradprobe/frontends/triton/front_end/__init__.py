"""What Triton's own front end says of the kernels that the interpreter ran: it compiles to TTIR without a GPU."""
