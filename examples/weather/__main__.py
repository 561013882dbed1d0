"""The demonstration: `python -m examples.weather`, or `make demo`."""

import sys

from examples.weather.demo import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
