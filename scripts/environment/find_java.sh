#!/usr/bin/env bash
# Prints the home directory of a Java that Spark can run on: version 17 or newer.
#
# Looked for in this order: JAVA_HOME, the `java` on the PATH, /usr/lib/jvm (the oldest that will do, because
# Spark is tested longest on it).  If there is none, one is installed with apt-get; where that is not possible,
# one line says what to install, and the exit status is 1.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/apt.sh"

oldest_supported=17

# The major version of the Java at $1, or nothing if there is none.
major_version() {
    [[ -x "$1/bin/java" ]] || return 0
    "$1/bin/java" -version 2>&1 | sed -n -E 's/.*version "(1\.)?([0-9]+).*/\2/p' | head -n 1
}

is_supported() {
    local version
    version=$(major_version "$1")
    [[ -n "$version" && "$version" -ge $oldest_supported ]]
}

from_java_home() {
    [[ -n "${JAVA_HOME:-}" ]] && is_supported "$JAVA_HOME" && echo "$JAVA_HOME"
}

from_path() {
    local java home
    java=$(command -v java) || return 1
    home=$(dirname "$(dirname "$(readlink -f "$java")")")
    is_supported "$home" && echo "$home"
}

from_installed() {
    local home version
    for home in /usr/lib/jvm/*; do
        version=$(major_version "$home")
        if [[ -n "$version" && "$version" -ge $oldest_supported ]]; then
            echo "$version $(readlink -f "$home")"
        fi
    done | sort -n | head -n 1 | cut -d ' ' -f 2- | grep .
}

find_java() {
    from_java_home || from_path || from_installed
}

if ! find_java; then
    apt_install openjdk-17-jre-headless || apt_install default-jre-headless || true
    if ! find_java; then
        echo "error: Spark needs Java $oldest_supported or newer and none was found;" \
            "install it (on Debian: apt-get install default-jre-headless) or set JAVA_HOME" >&2
        exit 1
    fi
fi
