# Sourced by the other scripts: installing Debian packages where that is possible.
#
# apt_install PACKAGE...   installs the packages without a question.  Returns 1, and installs nothing, where
#                          there is no apt-get or it may not be used (neither root nor sudo without password).
#                          Returns apt-get's failure when it fails, for example because a name is unknown.

apt_install() {
    local as_root=()
    command -v apt-get >/dev/null || return 1
    if [[ $(id -u) -ne 0 ]]; then
        command -v sudo >/dev/null && sudo -n true 2>/dev/null || return 1
        as_root=(sudo -n)
    fi
    echo "Installing $* with apt-get" >&2
    # The lists of a fresh image are empty or old.  A source that fails must not hide one that works.
    "${as_root[@]}" apt-get -qq update >/dev/null || true
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get -qq -o Dpkg::Use-Pty=0 install --yes --no-install-recommends "$@" </dev/null >/dev/null
}
