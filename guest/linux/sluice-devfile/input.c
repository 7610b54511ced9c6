// SPDX-License-Identifier: GPL-2.0-only
/*
 * The mirrored input device in sysfs, as udev, libinput and with them every
 * desktop look for it: an event device of the class "input", with a number of
 * that class, below a device that says in attributes what it is.
 *
 * What the attributes say comes from the other domain. It is text of printable
 * characters for attributes that are known here; nothing else is made of it.
 *
 * Source: the kernel's drivers/input/input.c and evdev.c, whose attributes
 * these are; Paradice, 5.1 (device info modules).
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/cdev.h>
#include <linux/err.h>
#include <linux/input.h>
#include <linux/kdev_t.h>
#include <linux/major.h>
#include <linux/module.h>
#include <linux/slab.h>
#include <linux/string.h>
#include <linux/version.h>

#include "devfile_face.h"
#include "input.h"

/* Numbers of event devices: evdev's own (drivers/input/evdev.c). */
#define FIRST_MINOR 64
#define FEW_MINORS 32

/* What is not of the input device itself, but how uevents name it. */
#define UEVENT "uevent/"

struct input_face {
	struct devfile_face face;
	struct device device; /* the event device's parent */
	struct device *event;
	struct cdev *cdev;
	int minor; /* below 0: none */
	size_t length;
	char text[];
};

/* An attribute, and its line in the text. */
struct shown {
	struct device_attribute attribute;
	const char *path;
};

/* The value of a line; NULL: there is none. */
static const char *find(const struct input_face *face, const char *path,
			int *length)
{
	return devfile_find(face->text, face->length, path, length);
}

static struct input_face *face_of(const struct device *device)
{
	return container_of(device, struct input_face, device);
}

static ssize_t shown_show(struct device *device,
			  struct device_attribute *attribute, char *to)
{
	struct shown *shown =
		container_of(attribute, struct shown, attribute);
	int length = 0;
	const char *value = find(face_of(device), shown->path, &length);

	return sysfs_emit(to, "%.*s\n", length, value ?: "");
}

#define SHOWN(variable, file, line)                                          \
	static struct shown variable = {                                     \
		.attribute = __ATTR(file, 0444, shown_show, NULL),           \
		.path = line,                                                \
	}

SHOWN(shown_name, name, "name");
SHOWN(shown_phys, phys, "phys");
SHOWN(shown_uniq, uniq, "uniq");
SHOWN(shown_properties, properties, "properties");
SHOWN(shown_modalias, modalias, "modalias");
SHOWN(shown_bustype, bustype, "id/bustype");
SHOWN(shown_vendor, vendor, "id/vendor");
SHOWN(shown_product, product, "id/product");
SHOWN(shown_version, version, "id/version");
SHOWN(shown_ev, ev, "capabilities/ev");
SHOWN(shown_key, key, "capabilities/key");
SHOWN(shown_rel, rel, "capabilities/rel");
SHOWN(shown_abs, abs, "capabilities/abs");
SHOWN(shown_msc, msc, "capabilities/msc");
SHOWN(shown_led, led, "capabilities/led");
SHOWN(shown_snd, snd, "capabilities/snd");
SHOWN(shown_ff, ff, "capabilities/ff");
SHOWN(shown_sw, sw, "capabilities/sw");

#define IN_LIST(shown) &shown.attribute.attr

static struct attribute *own[] = { IN_LIST(shown_name), IN_LIST(shown_phys),
				   IN_LIST(shown_uniq),
				   IN_LIST(shown_properties),
				   IN_LIST(shown_modalias), NULL };
static struct attribute *id[] = { IN_LIST(shown_bustype),
				  IN_LIST(shown_vendor),
				  IN_LIST(shown_product),
				  IN_LIST(shown_version), NULL };
static struct attribute *capabilities[] = {
	IN_LIST(shown_ev),  IN_LIST(shown_key), IN_LIST(shown_rel),
	IN_LIST(shown_abs), IN_LIST(shown_msc), IN_LIST(shown_led),
	IN_LIST(shown_snd), IN_LIST(shown_ff),	IN_LIST(shown_sw),
	NULL
};
static const struct attribute_group own_group = { .attrs = own };
static const struct attribute_group id_group = { .name = "id", .attrs = id };
static const struct attribute_group capabilities_group = {
	.name = "capabilities",
	.attrs = capabilities,
};
static const struct attribute_group *groups[] = { &own_group, &id_group,
						  &capabilities_group, NULL };

/* What a uevent of an input device may say. */
static const char *const variables[] = { "PRODUCT", "NAME", "PHYS", "UNIQ",
					 "PROP",    "EV",   "KEY",  "REL",
					 "ABS",	    "MSC",  "LED",  "SND",
					 "FF",	    "SW",   "MODALIAS" };

#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 3, 0)
static int face_uevent(const struct device *device,
		       struct kobj_uevent_env *env)
#else
static int face_uevent(struct device *device, struct kobj_uevent_env *env)
#endif
{
	int error = 0;
	size_t i;

	for (i = 0; i < ARRAY_SIZE(variables) && !error; i++) {
		char path[sizeof(UEVENT) + 16];
		const char *value;
		int length;

		snprintf(path, sizeof(path), UEVENT "%s", variables[i]);
		value = find(face_of(device), path, &length);
		if (value)
			error = add_uevent_var(env, "%s=%.*s", variables[i],
					       length, value);
	}
	return error;
}

static const struct device_type face_type = {
	.groups = groups,
	.uevent = face_uevent,
};

static void face_release(struct device *device)
{
	kfree(face_of(device));
}

/* The wished number, or the next one that is free. */
static int take_minor(unsigned int wished)
{
	int taken[FEW_MINORS], minor, count = 0;

	do {
		minor = input_get_new_minor(FIRST_MINOR, FEW_MINORS, true);
		if (minor >= 0)
			taken[count++] = minor;
	} while (minor >= 0 && minor < FIRST_MINOR + (int)wished &&
		 count < FEW_MINORS);
	/* Those before it are for others. */
	while (count--)
		if (taken[count] != minor)
			input_free_minor(taken[count]);
	return minor;
}

static struct devfile_face *show(const struct devfile_shown *shown)
{
	struct input_face *face;
	unsigned int wished, number;
	size_t length = shown->length;
	int error;

	if (sscanf(shown->node, "input/event%u", &wished) != 1 ||
	    !devfile_is_text(shown->text, length))
		return ERR_PTR(-EINVAL);
	face = kzalloc(struct_size(face, text, length), GFP_KERNEL);
	if (!face)
		return ERR_PTR(-ENOMEM);
	memcpy(face->text, shown->text, length);
	face->length = length;
	face->face.kind = &devfile_input_face;
	device_initialize(&face->device);
	face->device.class = &input_class;
	face->device.parent = shown->parent;
	face->device.type = &face_type;
	face->device.release = face_release;
	face->minor = take_minor(min_t(unsigned int, wished, FEW_MINORS - 1));
	error = face->minor < 0 ? face->minor : 0;
	if (error)
		goto put;
	/* Rules of udev's know input devices by this beginning. */
	error = dev_set_name(&face->device, "input-%s",
			     dev_name(shown->parent));
	if (!error)
		error = device_add(&face->device);
	if (error)
		goto free;
	face->cdev = cdev_alloc();
	error = face->cdev ? 0 : -ENOMEM;
	if (error)
		goto delete;
	face->cdev->ops = shown->operations;
	face->cdev->owner = THIS_MODULE;
	error = cdev_add(face->cdev, MKDEV(INPUT_MAJOR, face->minor), 1);
	if (error)
		goto uncdev;
	number = face->minor;
	if (number < FIRST_MINOR + FEW_MINORS)
		number -= FIRST_MINOR;
	snprintf(face->face.node, sizeof(face->face.node), "input/event%u",
		 number);
	face->event = device_create(&input_class, &face->device,
				    MKDEV(INPUT_MAJOR, face->minor), NULL,
				    "event%u", number);
	error = PTR_ERR_OR_ZERO(face->event);
	if (!error)
		return &face->face;

uncdev:
	cdev_del(face->cdev);
delete:
	device_del(&face->device);
free:
	input_free_minor(face->minor);
put:
	put_device(&face->device);
	return ERR_PTR(error);
}

static void hide(struct devfile_face *shown)
{
	struct input_face *face = container_of(shown, struct input_face, face);

	device_unregister(face->event);
	cdev_del(face->cdev);
	device_del(&face->device);
	input_free_minor(face->minor);
	put_device(&face->device);
}

static bool is(const struct devfile_face *face, const struct inode *inode)
{
	return inode->i_cdev ==
	       container_of(face, struct input_face, face)->cdev;
}

/* Its owner is who shows it, and need not be held. */
const struct devfile_face_kind devfile_input_face = {
	.show = show,
	.hide = hide,
	.is = is,
};
