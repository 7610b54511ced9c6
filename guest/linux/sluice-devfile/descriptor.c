// SPDX-License-Identifier: GPL-2.0-only
/*
 * Files for descriptors that ioctls answer with. They are made before the other
 * side is asked, so that a program which is killed meanwhile leaves nothing that
 * is nobody's.
 */
#include <linux/anon_inodes.h>
#include <linux/file.h>

#include "descriptor.h"
#include "devfile.h"

/* Nobody gets it. The other side may have it all the same. */
void give_up(struct made *made, bool lost)
{
	made->open->lost = lost;
	put_unused_fd(made->descriptor);
	fput(made->file);
}

int prepare(struct file *from, const struct lead *lead, unsigned long structure,
	    struct made *made)
{
	struct open_file *open = from->private_data;
	u64 flags = O_RDWR | O_CLOEXEC;
	int error = 0;

	if (lead->flags == THE_ARGUMENT)
		flags = structure;
	else if (lead->flags != NOTHING)
		error = get_field(structure, lead->flags, 4, &flags);
	if (error)
		return error;
	if (lead->reopens)
		flags = (flags & ~(u64)O_ACCMODE) | (from->f_flags & O_ACCMODE);
	made->open = new_file(open->mirror, from->f_mapping);
	if (IS_ERR(made->open))
		return PTR_ERR(made->open);
	made->descriptor = get_unused_fd_flags(flags & O_CLOEXEC);
	error = made->descriptor;
	if (error < 0)
		goto end;
	made->file = anon_inode_getfile("[sluice-devfile]",
					open->mirror->operations,
					made->open,
					flags & (O_ACCMODE | O_NONBLOCK));
	error = PTR_ERR_OR_ZERO(made->file);
	if (error)
		goto put;
	/* Its memory is found by this, and no other file's is. */
	made->open->of = from->f_mapping->host;
	ihold(made->open->of);
	made->file->f_mapping = from->f_mapping;
	add_open(made->open, made->file);
	made->bits = (u64)made->open->number << SLUICE_DEVFILE_IOCTL_FILE;
	if (lead->descriptor == THE_RESULT)
		made->bits |= SLUICE_DEVFILE_IOCTL_RESULT;
	else if (lead->descriptor == SAID_ELSEWHERE)
		made->bits |= SLUICE_DEVFILE_IOCTL_RANGE;
	else
		made->bits |= (u64)lead->descriptor
			      << SLUICE_DEVFILE_IOCTL_DESCRIPTOR;
	if (made->open->life == open->life)
		return 0;
	give_up(made, false);
	return -ENODEV;

put:
	put_unused_fd(made->descriptor);
end:
	end_file(made->open);
	return error;
}
