// SPDX-License-Identifier: GPL-2.0-only
/*
 * All that a program can do with a file.
 */
#include <linux/compat.h>
#include <linux/module.h>

#include "devfile.h"
#include "operate_on.h"

/* Most bytes that one read or write moves: programs ask again. */
#define MOST_BYTES 0x10000U

/* Where the file is, which the other side knows, or, if the caller says so, from an offset on. */
static ssize_t move(struct file *file, char __user *buffer, size_t bytes,
		    loff_t *offset, u32 operation)
{
	struct open_file *open = file->private_data;
	u32 ways = operation == SLUICE_DEVFILE_READ ? SLUICE_DEVFILE_OUT :
						      SLUICE_DEVFILE_IN;
	struct slot *slot;
	u64 place = 0;
	s64 result;
	int error;

	if (offset) {
		if (*offset < 0 || *offset == S64_MAX)
			return -EINVAL;
		place = *offset + 1;
	}
	if (in_compat_syscall())
		place |= SLUICE_DEVFILE_MOVE_NARROW;
	bytes = min_t(size_t, bytes, MOST_BYTES);
	slot = begin(open, operation, file->f_flags);
	if (IS_ERR(slot))
		return PTR_ERR(slot);
	slot->request->arguments[0] = cpu_to_le64((unsigned long)buffer);
	slot->request->arguments[1] = cpu_to_le64(bytes);
	slot->request->arguments[2] = cpu_to_le64(place);
	error = reach(slot, (unsigned long)buffer, bytes, ways);
	if (error) {
		unpin(slot);
		free_slot(open->mirror, slot);
		return error;
	}
	result = plausible(operate_on(open, slot, file->f_flags, true), bytes);
	/* What preadv goes on from. */
	if (offset && result > 0)
		*offset += result;
	if (result == -EAGAIN || READ_ONCE(open->signalled))
		arm_listeners(open);
	return result;
}

static ssize_t devfile_read(struct file *file, char __user *buffer,
			    size_t bytes, loff_t *offset)
{
	return move(file, buffer, bytes, offset, SLUICE_DEVFILE_READ);
}

static ssize_t devfile_write(struct file *file, const char __user *buffer,
			     size_t bytes, loff_t *offset)
{
	return move(file, (char __user *)buffer, bytes, offset,
		    SLUICE_DEVFILE_WRITE);
}

/* The other side knows where the file is, whoever moved it there. */
static loff_t devfile_seek(struct file *file, loff_t offset, int whence)
{
	struct open_file *open = file->private_data;
	struct slot *slot;
	s64 result;

	slot = begin(open, SLUICE_DEVFILE_SEEK, file->f_flags);
	if (IS_ERR(slot))
		return PTR_ERR(slot);
	slot->request->arguments[0] = cpu_to_le64(offset);
	slot->request->arguments[1] = cpu_to_le64(whence);
	result = operate(open->mirror, slot, false, open->life, true);
	return plausible(result, S64_MAX);
}

static int devfile_open(struct inode *inode, struct file *file)
{
	struct open_file *open = open_node(inode, file->f_mapping);
	struct slot *slot;
	int error;

	if (IS_ERR(open))
		return PTR_ERR(open);
	slot = begin(open, SLUICE_DEVFILE_OPEN, file->f_flags);
	error = PTR_ERR_OR_ZERO(slot);
	if (!error)
		error = plausible(operate(open->mirror, slot, true, open->life,
					  false),
				  0);
	if (error) {
		/* It may succeed yet. */
		end_file(open);
		return error;
	}
	file->private_data = open;
	add_open(open, file);
	return 0;
}

static int devfile_release(struct inode *inode, struct file *file)
{
	struct open_file *open = file->private_data;
	struct mirror *mirror = open->mirror;
	unsigned long flags;
	unsigned int i;

	forget_open(open);
	mutex_lock(&mirror->opens_lock);
	list_del(&open->entry);
	mutex_unlock(&mirror->opens_lock);
	for (i = 0; i < SLUICE_DEVFILE_MAX_OPERATIONS; i++) {
		struct slot *slot = &mirror->slots[i];
		bool ours;

		spin_lock_irqsave(&mirror->lock, flags);
		ours = slot->state == SLOT_AWAIT && slot->file == open;
		spin_unlock_irqrestore(&mirror->lock, flags);
		if (ours)
			notice(mirror, SLUICE_DEVFILE_CANCEL, i, 0, 0,
			       open->life);
	}
	end_file(open);
	return 0;
}

const struct file_operations devfile_operations = {
	.owner = THIS_MODULE,
	.open = devfile_open,
	.release = devfile_release,
	.read = devfile_read,
	.write = devfile_write,
	.unlocked_ioctl = devfile_ioctl,
#ifdef CONFIG_COMPAT
	.compat_ioctl = devfile_narrow_ioctl,
#endif
	.llseek = devfile_seek,
	.fasync = devfile_signal,
	.poll = devfile_poll,
	.mmap = devfile_mmap,
};
