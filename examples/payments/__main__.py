"""The demonstration: `python -m examples.payments`, or `make demo-payments`, which installs the servers."""

import sys

from examples.payments.demo import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
