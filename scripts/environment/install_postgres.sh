#!/usr/bin/env bash
# Installs Debian's PostgreSQL server, unless there is one.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
source scripts/environment/apt.sh

if ! command -v initdb >/dev/null && ! compgen -G "/usr/lib/postgresql/*/bin/initdb" >/dev/null; then
    apt_install postgresql || {
        echo "error: the tests of connectors need a PostgreSQL server: apt-get install postgresql" >&2
        exit 1
    }
fi
