#!/usr/bin/env bash
# Runs a command in the project's environment: scripts/environment/run.sh python -m examples.flights
#
# The command finds the programs of .venv first, Spark finds a Java, and Spark's workers use the same
# interpreter as the driver and find the modules of this directory wherever they are started.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)

JAVA_HOME=$("$root/scripts/environment/find_java.sh")
export JAVA_HOME
export PATH="$root/.venv/bin:$JAVA_HOME/bin:$PATH"
export PYSPARK_PYTHON="$root/.venv/bin/python"
export PYSPARK_DRIVER_PYTHON="$root/.venv/bin/python"
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}"
# Programs, workers and tests start by the dozen; each would compile every module anew.
unset PYTHONDONTWRITEBYTECODE
# A Spark elsewhere on the machine would be started instead of the installed package.
unset SPARK_HOME
exec "$@"
