#!/bin/sh
# Says at once if there is no room for what a first build, the downloads and the tests leave here, rather than in the middle of it.
# SLUICE_SKIP_SETUP=1 leaves that to you, and so does a folder of your own for either.
set -eu

[ "${SLUICE_SKIP_SETUP:-}" = 1 ] && exit 0
[ -z "${CARGO_TARGET_DIR:-}${SLUICE_CACHE:-}" ] || exit 0
cd "$(dirname "$0")/.."

# MiB, as measured, with a third on top: target/ and cache/ after `make test`.
needed=6000
[ ! -d target ] || needed=$((needed - $(du -sm target | cut -f 1)))
[ ! -d cache ] || needed=$((needed - $(du -sm cache | cut -f 1)))
[ "$needed" -gt 500 ] || needed=500
free=$(df -Pm . | sed -n '2s/  */ /gp' | cut -d ' ' -f 4)
if [ "$free" -lt "$needed" ]; then
	echo "setup: $PWD has $free MiB free, and building and testing Sluice takes $needed more" >&2
	echo "  help: make room there, or have CARGO_TARGET_DIR and SLUICE_CACHE name folders on another disk" >&2
	[ "$free" -ge $((needed / 2)) ] || exit 1
	echo "setup: going on, since it may just do" >&2
fi
