#!/bin/sh
# in_memory.sh COMMAND ARGUMENTS...
#
# Runs a command with its temporary files in memory, where this is possible: on Linux as root, in
# mounts of its own, which end with the command. Tests wait half of their time for the disk: each of
# thousands of small data directories is synchronised several times. Elsewhere the command runs as it
# is. KEEP_FILES=1 keeps the files of failed tests, on the disk.
set -eu
if [ "${KEEP_FILES:-}" != 1 ] && [ "$(id -u)" = 0 ] && unshare --mount true 2>/dev/null; then
    folder=$(mktemp -d "${TMPDIR:-/tmp}/lw-XXXXXX")
    trap 'rmdir "$folder"' EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
    TMPDIR=$folder unshare --mount --propagation private sh -c '
        mount -t tmpfs -o mode=1777,size=75% tmpfs "$TMPDIR" && exec "$@"' sh "$@"
else
    exec "$@"
fi
