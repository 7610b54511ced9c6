// SPDX-License-Identifier: GPL-2.0-only
/*
 * Ioctls: their numbers and the tables say what they may reach.
 */
#include <linux/file.h>
#include <linux/uaccess.h>

#include "descriptor.h"
#include "devfile.h"
#include "lead.h"

/*
 * The number says where the argument leads. What is written is read before, so
 * that bytes which the driver leaves alone stay. An argument that leads nowhere
 * may be a number: the driver will say. So it does of what cannot be declared.
 */
static __always_inline s64 ask(struct file *file, const struct lead *lead,
			       unsigned int number, unsigned long argument,
			       u64 bits)
{
	struct open_file *open = file->private_data;
	bool makes_file = bits >> SLUICE_DEVFILE_IOCTL_DESCRIPTOR;
	struct slot *slot;
	u32 ways = 0;

	slot = begin(open, SLUICE_DEVFILE_IOCTL, file->f_flags);
	if (IS_ERR(slot))
		return PTR_ERR(slot);
	slot->request->arguments[0] = cpu_to_le64(number);
	slot->request->arguments[1] = cpu_to_le64(argument);
	slot->request->arguments[2] = cpu_to_le64(bits);
	if (_IOC_DIR(number) & _IOC_WRITE)
		ways |= SLUICE_DEVFILE_IN;
	/* Drivers write some structures back that they are said to read. */
	if (_IOC_DIR(number) & _IOC_READ || lead)
		ways |= SLUICE_DEVFILE_IN | SLUICE_DEVFILE_OUT;
	if (ways)
		reach(slot, argument, _IOC_SIZE(number), ways);
	if (lead && (lead->pointer != NOTHING || lead->follows != NOTHING))
		follow(open, slot, lead, argument);
	/* The other side's daemon has to know of a new file, which a lane passes by. */
	return plausible(operate_on(open, slot, file->f_flags, !makes_file),
			 INT_MAX);
}

/* An ioctl that answers with a descriptor. */
static noinline long make_descriptor(struct file *file, const struct lead *lead,
				     unsigned int number,
				     unsigned long argument, u64 bits)
{
	s32 __user *place = (void __user *)(argument + lead->descriptor - 1);
	struct made made;
	s64 result;

	result = prepare(file, lead, argument, &made);
	if (result)
		return result;
	result = ask(file, lead, number, argument, bits | made.bits);
	if (!result && put_user(made.descriptor, place))
		result = -EFAULT;
	if (!result)
		fd_install(made.descriptor, made.file);
	else
		give_up(&made, result == -EIO || result == -EINTR ||
				       result == -ERESTARTSYS);
	return result;
}

static long make_ioctl(struct file *file, unsigned int number,
		       unsigned long argument, u64 bits)
{
	struct open_file *open = file->private_data;
	const struct lead *lead = lead_of(open->mirror->leads, number);
	s64 result;

	if (lead && lead->refused) {
		u64 choice;

		if (!get_field(argument, lead->choice, 4, &choice) &&
		    choice < 32 && lead->refused & BIT(choice))
			return -EINVAL;
	}
	if (lead && lead->descriptor)
		return make_descriptor(file, lead, number, argument, bits);
	result = ask(file, lead, number, argument, bits);
	if (lead && lead->not_offered && !result) {
		u64 offer;

		if (!get_field(argument, lead->offer, 4, &offer))
			result = put_user((u32)offer & ~lead->not_offered,
					  (u32 __user *)(argument +
							 lead->offer));
	}
	if (lead && lead->frame_bits != NOTHING && !result) {
		u64 frame;

		if (!get_field(argument, lead->frame_bits, 4, &frame))
			open->frame = frame / 8;
	}
	if (result == -EAGAIN)
		arm_listeners(open);
	return result;
}

long devfile_ioctl(struct file *file, unsigned int number,
		   unsigned long argument)
{
	return make_ioctl(file, number, argument, 0);
}

#ifdef CONFIG_COMPAT
/* Structures that lead on are others here, of which no class has a table. */
long devfile_narrow_ioctl(struct file *file, unsigned int number,
			  unsigned long argument)
{
	return make_ioctl(file, number, argument, SLUICE_DEVFILE_IOCTL_NARROW);
}
#endif
