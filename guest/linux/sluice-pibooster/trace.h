/* SPDX-License-Identifier: GPL-2.0-only */
/* The record of what page tables come and go. It asks nothing of the module's other parts, which tell it what happens. */
#ifndef _SLUICE_PIBOOSTER_TRACE_H
#define _SLUICE_PIBOOSTER_TRACE_H

#include <linux/types.h>

#include "level.h"

/* There is a record, and room in it. */
extern bool tracing;
/* The longest record. */
#define TRACE_MAX_KIB 4096

/* A table of this level was allocated, or freed. */
void trace_table(enum level level, bool freed);
/* A second is over. */
void trace_second(void);
/* Begins a new record of at most so many KiB; 0: there is none. */
int trace_begin(unsigned long kib);
unsigned long trace_kib(void);
ssize_t trace_read(char *to, loff_t offset, size_t count);

#endif
