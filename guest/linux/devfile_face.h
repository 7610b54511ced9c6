/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The face of a mirrored device file: its node and its device in sysfs, as the
 * programs of a class of devices look for them. A class that another module of
 * the kernel owns (cameras, sound cards, graphics cards) has its face in a module of its own,
 * "sluice-devfile-CLASS", so that the front end does not need that one.
 */
#ifndef _SLUICE_DEVFILE_FACE_H
#define _SLUICE_DEVFILE_FACE_H

#include <linux/ctype.h>
#include <linux/device.h>
#include <linux/fs.h>
#include <linux/string.h>

/* A node to be shown. */
struct devfile_shown {
	struct device *parent;
	/* Its name below /dev in the other domain. */
	const char *node;
	/* The front end's number for it, where the class has none of its own. */
	dev_t number;
	/* Text that the other domain gives, a line for each attribute. */
	const char *text;
	size_t length;
	const struct file_operations *operations;
};

struct devfile_face;

struct devfile_face_kind {
	struct module *owner;
	/* An error: it is nothing of this class, or there is no room. */
	struct devfile_face *(*show)(const struct devfile_shown *shown);
	/* Files that are open stay. */
	void (*hide)(struct devfile_face *face);
	/*
	 * Whether a node that is being opened is this one; NULL: it has the
	 * number of the front end's.
	 */
	bool (*is)(const struct devfile_face *face, const struct inode *inode);
};

struct devfile_face {
	const struct devfile_face_kind *kind;
	/* Its name below /dev here. */
	char node[64];
};

/* Names of the kinds that modules export. */
extern const struct devfile_face_kind sluice_devfile_video_face;
extern const struct devfile_face_kind sluice_devfile_sound_face;
extern const struct devfile_face_kind sluice_devfile_drm_face;

/* The value of an attribute's line; NULL: there is none. */
static inline const char *devfile_find(const char *text, size_t size,
				       const char *attribute, int *length)
{
	const char *line = text, *end = text + size;
	size_t prefix = strlen(attribute);

	while (line < end) {
		const char *next = memchr(line, '\n', end - line) ?: end;

		if (next - line > prefix && !memcmp(line, attribute, prefix) &&
		    line[prefix] == '=') {
			*length = next - line - prefix - 1;
			return line + prefix + 1;
		}
		line = next + 1;
	}
	return NULL;
}

/* Whether a text is something, in printable characters. */
static inline bool devfile_is_text(const char *text, size_t length)
{
	size_t i;

	for (i = 0; i < length; i++)
		if (text[i] != '\n' && !(isascii(text[i]) && isprint(text[i])))
			return false;
	return length > 0;
}

#endif
