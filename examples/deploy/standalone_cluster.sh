#!/usr/bin/env bash
# Starts a Spark master and two workers on this machine, as separate processes with separate directories.
#
# usage: examples/deploy/standalone_cluster.sh DIRECTORY [PORT]
#
# It needs pyspark in the Python on the PATH. The cluster runs until this script is ended (Ctrl-C or SIGTERM).
set -euo pipefail
directory=$(mkdir -p "$1" && cd "$1" && pwd)
port=${2:-7077}
spark=$(python -c 'import os, pyspark; print(os.path.dirname(pyspark.__file__))')

trap 'kill $(jobs -p) 2>/dev/null; wait' EXIT
trap 'exit 0' INT TERM

"$spark/bin/spark-class" org.apache.spark.deploy.master.Master --host 127.0.0.1 --port "$port" --webui-port 0 \
    >"$directory/master.log" 2>&1 &
for number in 1 2; do
    own=$directory/worker-$number
    mkdir -p "$own/work" "$own/local"
    (
        cd "$own"
        SPARK_LOCAL_DIRS=$own/local exec "$spark/bin/spark-class" org.apache.spark.deploy.worker.Worker \
            --cores 1 --memory 1g --host 127.0.0.1 --webui-port 0 --work-dir "$own/work" "spark://127.0.0.1:$port" \
            >"$own/worker.log" 2>&1
    ) &
done
echo "spark://127.0.0.1:$port"
wait
