# Sluice: what to type. Everything else is `cargo sluice --help`.

CARGO := $(shell command -v cargo || echo /usr/bin/cargo)
SLUICE := $(CARGO) sluice

.PHONY: help setup setup-all run test test-all mutate check bench image deb clean

help:
	@echo 'make run     boot two Debian guests that share one network card, in QEMU'
	@echo 'make test    host tests, then the scenarios in QEMU'
	@echo 'make test-all   the same with the rest of each matrix, more seeds and long runs'
	@echo 'make mutate  take checks out of a copy of the sources, and see whether a test notices'
	@echo 'make check   formatting, lints, the example configurations'
	@echo 'make bench   repeat the measurements in bench/results'
	@echo 'make image   sluice.iso: guests for a PC that need no server (BIOS and UEFI)'
	@echo 'make deb     Debian packages of the command, with the hypervisor in it, and of the modules for DKMS, and a look into both'
	@echo 'make setup   install what the others need (they do it themselves); setup-all: and what test-all and bench need'
	@echo 'make clean   remove what was built; downloads stay in cache/'

setup:
	@setup/packages.sh
	@setup/space.sh

setup-all:
	@setup/packages.sh all
	@setup/space.sh

run: setup
	$(SLUICE) run examples/two-guests.toml --timeout 900

test: setup
	$(CARGO) test --quiet
	$(SLUICE) test

test-all: setup-all
	$(CARGO) test --quiet
	$(SLUICE) test --all
	$(MAKE) deb

mutate: setup
	$(SLUICE) mutate

check: setup
	$(CARGO) fmt --check
	$(CARGO) clippy --quiet --all-targets -- -D warnings
	$(SLUICE) build --lint
	@if command -v cargo-deny >/dev/null; then $(CARGO) deny --log-level error check; \
	else echo 'check: cargo-deny is not installed; licences are not checked (see deny.toml)'; fi
	@for file in examples/*.toml; do $(SLUICE) check $$file || exit 1; done

bench: setup-all
	$(SLUICE) bench

image: setup
	$(SLUICE) image examples/pc.toml -o sluice.iso

deb: setup
	setup/deb.sh
	setup/modules-deb.sh

clean:
	rm -rf target run sluice.iso
