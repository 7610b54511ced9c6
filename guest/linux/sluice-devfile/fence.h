/* SPDX-License-Identifier: GPL-2.0-only */
/* Fences that properties of a screen name: fence.c. */
#ifndef _SLUICE_DEVFILE_FENCE_H
#define _SLUICE_DEVFILE_FENCE_H

#include "devfile.h"

/* Notes whether the property that a program has asked for by this file is one of a fence. */
void note_fence(struct open_file *open, unsigned long argument);
/*
 * Goes through the properties of a commit: adds descriptors that it takes to a
 * request, unless that is NULL, and says where it answers with one; 0: nowhere.
 * An error: it is not to be made.
 */
int find_fences(struct open_file *open, struct slot *slot,
		unsigned long argument, u64 *out);
/* Whether a commit is only to be looked at: no fence is told. */
bool only_tests(unsigned long argument);

#endif
