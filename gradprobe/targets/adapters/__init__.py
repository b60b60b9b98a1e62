"""Other people's attention kernels as forwards with this project's parameter names, one file a library."""
