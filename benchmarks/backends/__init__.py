"""The keyed state backends beside the bare engines they stand on: a dict, and rocksdict with hand-packed bytes."""
