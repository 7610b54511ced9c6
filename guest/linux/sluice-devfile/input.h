/* SPDX-License-Identifier: GPL-2.0-only */
/* What programs look for in sysfs of an input device: input.c. */
#ifndef _SLUICE_DEVFILE_INPUT_H
#define _SLUICE_DEVFILE_INPUT_H

#include <linux/device.h>
#include <linux/fs.h>

struct input_face;

/*
 * Shows a node as an input device's. Its number is the one that its name says,
 * or the next that is free here. `text` is what the other domain says of the
 * device, a line for each attribute, and is copied. An error: it is none, or
 * there is no room.
 */
struct input_face *input_face_show(struct device *parent, const char *node,
				   const char *text, size_t length,
				   const struct file_operations *operations);
/* Shows it no more. Files that are open stay. */
void input_face_hide(struct input_face *face);
/* Whether a node that is being opened is this one. */
bool input_face_is(const struct input_face *face, const struct inode *inode);
/* Its name below /dev. */
const char *input_face_node(const struct input_face *face);

#endif
