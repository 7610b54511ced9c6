/* SPDX-License-Identifier: GPL-2.0-only */
/* Descriptors that ioctls answer with: descriptor.c. */
#ifndef _SLUICE_DEVFILE_DESCRIPTOR_H
#define _SLUICE_DEVFILE_DESCRIPTOR_H

#include <linux/fs.h>

#include "lead.h"

/* A file for one, and its descriptor, before either is anybody's. */
struct made {
	struct file *file;
	struct open_file *open;
	int descriptor;
	u64 bits; /* that say so in the request */
};

/*
 * Makes a file and its descriptor, for what an ioctl on a file answers with by
 * this line of a table. An error: there is nothing to be given up.
 */
int prepare(struct file *from, const struct lead *lead, unsigned long structure,
	    struct made *made);
/* Nobody gets it. Lost: the other side may have it all the same. */
void give_up(struct made *made, bool lost);

#endif
