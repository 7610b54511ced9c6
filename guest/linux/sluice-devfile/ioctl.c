// SPDX-License-Identifier: GPL-2.0-only
/*
 * Ioctls: their numbers and the tables say what they may reach.
 */
#include <linux/capability.h>
#include <linux/file.h>
#include <linux/pid.h>
#include <linux/sched.h>
#include <linux/uaccess.h>

#include "descriptor.h"
#include "devfile.h"
#include "fence.h"
#include "lead.h"
#include "operate_on.h"

/*
 * Adds to a commit what its properties take, and where it answers with a fence:
 * where it was found before a file was made for that.
 */
static noinline int reach_fences(struct open_file *open, struct slot *slot,
				 unsigned long argument, u64 place)
{
	u64 out, bits = le64_to_cpu(slot->request->arguments[2]);
	int error = find_fences(open, slot, argument, &out);

	if (error)
		return error;
	if (out != place)
		return -EINVAL;
	if (!place)
		return 0;
	error = reach(slot, place, sizeof(u32),
		      SLUICE_DEVFILE_IN | SLUICE_DEVFILE_OUT);
	/* The driver writes there that there is no fence. */
	if (!(bits & SLUICE_DEVFILE_IOCTL_RANGE))
		return error;
	/* One more than the number of this range. */
	bits |= (u64)slot->count << SLUICE_DEVFILE_IOCTL_DESCRIPTOR;
	slot->request->arguments[2] = cpu_to_le64(bits);
	return error;
}

/*
 * The number says where the argument leads. What is written is read before, so
 * that bytes which the driver leaves alone stay. An argument that leads nowhere
 * may be a number: the driver will say. So it does of what cannot be declared.
 */
static __always_inline s64 ask(struct file *file, const struct lead *lead,
			       unsigned int number, unsigned long argument,
			       u64 bits, u64 place)
{
	struct open_file *open = file->private_data;
	bool at_once = true;
	struct slot *slot;
	u32 ways = 0;
	int error;

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
	if (lead) {
		error = follow(file, slot, lead, argument);
		if (!error && lead->has_fences)
			error = reach_fences(open, slot, argument, place);
		if (error) {
			let_go(slot);
			unpin(slot);
			free_slot(open->mirror, slot);
			return error;
		}
		/* The other side's daemon has to know of a new file, and passes others along: a lane goes by it. */
		at_once = !(bits & ~SLUICE_DEVFILE_IOCTL_NARROW) &&
			  !slot->taken_count;
	}
	return plausible(operate_on(open, slot, file->f_flags, at_once),
			 INT_MAX);
}

/* The line by which an ioctl answers with a descriptor this time; NULL: it does not. */
static const struct lead *line_of_descriptor(const struct lead *lead,
					     unsigned long argument)
{
	u32 number = lead->number;

	for (; lead->number == number; lead++)
		if (lead->descriptor && applies(lead, argument))
			return lead;
	return NULL;
}

/* An ioctl that answers with a descriptor, as a line says. */
static noinline long make_descriptor(struct file *file, const struct lead *lead,
				     const struct lead *line,
				     unsigned int number,
				     unsigned long argument, u64 bits,
				     u64 elsewhere)
{
	bool is_result = line->descriptor == THE_RESULT;
	s32 __user *place = (void __user *)(elsewhere ?:
				argument + line->descriptor - 1);
	struct made made;
	s64 result;

	result = prepare(file, line, argument, &made);
	if (result)
		return result;
	result = ask(file, lead, number, argument, bits | made.bits, elsewhere);
	tell_descriptors(file, lead, argument);
	if (!result && !is_result && put_user(made.descriptor, place))
		result = -EFAULT;
	if (!result) {
		fd_install(made.descriptor, made.file);
		return is_result ? made.descriptor : 0;
	}
	give_up(&made, result == -EIO || result == -EINTR ||
			       result == -ERESTARTSYS);
	return result;
}

/* What the driver offers, and is not to be had here. */
static int withdraw_offer(const struct lead *lead, unsigned long argument)
{
	u32 not_offered = lead->not_offered;
	u64 offer;

	if (lead->not_alone && !is_mirrored(leads_of("media", false)))
		not_offered |= lead->not_alone;
	if (get_field(argument, lead->offer, 4, &offer))
		return 0;
	return put_user((u32)offer & ~not_offered,
			(u32 __user *)(argument + lead->offer));
}

/* How large frames and samples are, which reads and writes count in. */
static void note_sound(struct open_file *open, const struct lead *lead,
		       unsigned long argument)
{
	u64 frame, sample, channels;

	if (get_field(argument, lead->frame_bits, 4, &frame) ||
	    get_field(argument, lead->sample_bits, 4, &sample) ||
	    get_field(argument, lead->channels, 4, &channels))
		return;
	open->frame = frame / 8;
	open->sample = sample / 8;
	open->channels = channels;
}

/* One of which more is known than its number says. */
static noinline long make_known(struct file *file, const struct lead *lead,
				unsigned int number, unsigned long argument,
				u64 bits)
{
	/* A fence that a property names. */
	static const struct lead fence = { .descriptor = SAID_ELSEWHERE,
					   .flags = NOTHING };
	struct open_file *open = file->private_data;
	const struct lead *line;
	u64 choice, place;
	s64 result;

	if (lead->refused && !get_field(argument, lead->choice, 4, &choice) &&
	    choice < 32 && lead->refused & BIT(choice))
		return -EINVAL;
	if (lead->is_openers && open->opener != task_tgid(current) &&
	    !capable(CAP_SYS_ADMIN))
		return -EACCES;
	if (lead->has_fences) {
		result = find_fences(open, NULL, argument,
				     &place);
		if (!result && place && !only_tests(argument))
			return make_descriptor(file, lead, &fence, number,
					       argument, bits, place);
		return result ?: ask(file, lead, number, argument, bits, place);
	}
	line = line_of_descriptor(lead, argument);
	if (line)
		return make_descriptor(file, lead, line, number, argument,
				       bits, 0);
	result = ask(file, lead, number, argument, bits, 0);
	tell_descriptors(file, lead, argument);
	if (lead->names_fences && !result)
		note_fence(open, argument);
	if (lead->asker && !result)
		result = put_user(task_pid_vnr(current),
				  (u32 __user *)(argument + lead->asker - 1));
	if (lead->not_offered && !result)
		result = withdraw_offer(lead, argument);
	if (lead->frame_bits != NOTHING && !result)
		note_sound(open, lead, argument);
	return result;
}

static long make_ioctl(struct file *file, unsigned int number,
		       unsigned long argument, u64 bits)
{
	struct open_file *open = file->private_data;
	const struct mirror *mirror = open->mirror;
	const struct lead *lead = lead_of(
		bits ? mirror->narrow_leads : mirror->leads, number);
	s64 result;

	if (lead)
		result = make_known(file, lead, number, argument, bits);
	else
		result = ask(file, NULL, number, argument, bits, 0);
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
/* Structures with pointers or long numbers are others here (narrow.h). */
long devfile_narrow_ioctl(struct file *file, unsigned int number,
			  unsigned long argument)
{
	return make_ioctl(file, number, argument, SLUICE_DEVFILE_IOCTL_NARROW);
}
#endif
