// SPDX-License-Identifier: GPL-2.0-only
/*
 * The mirrored sound card in sysfs: nodes of the class "sound" below a card of
 * that class, by which udev's rules know that there is one.
 *
 * Each node comes by itself; the first one of a card brings the card, and the
 * last takes it away. The card has the number that it has in the other domain,
 * which is in its nodes' names and in what they answer.
 *
 * Source: the kernel's sound/core/init.c and sound.c, whose names these are.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/err.h>
#include <linux/list.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/slab.h>
#include <linux/version.h>
#include <sound/core.h>

#include "devfile_face.h"

#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 6, 0)
#define SOUND_CLASS (&sound_class)
#else
#define SOUND_CLASS sound_class
#endif

struct card {
	struct device device;
	struct list_head entry;
	unsigned int number;
	struct list_head nodes; /* that are shown of it */
	char id[32];
};

struct sound_face {
	struct devfile_face face;
	struct list_head entry;
	struct card *card;
	struct device *parent;
	dev_t number;
};

static LIST_HEAD(cards);
static DEFINE_MUTEX(cards_lock);

static struct card *card_of(struct device *device)
{
	return container_of(device, struct card, device);
}

static ssize_t id_show(struct device *device,
		       struct device_attribute *attribute, char *to)
{
	return sysfs_emit(to, "%s\n", card_of(device)->id);
}

static ssize_t number_show(struct device *device,
			   struct device_attribute *attribute, char *to)
{
	return sysfs_emit(to, "%u\n", card_of(device)->number);
}

static DEVICE_ATTR_RO(id);
static DEVICE_ATTR_RO(number);

static struct attribute *card_attrs[] = {
	&dev_attr_id.attr,
	&dev_attr_number.attr,
	NULL,
};
ATTRIBUTE_GROUPS(card);

static void card_release(struct device *device)
{
	kfree(card_of(device));
}

/* The card of this number, made if it is its first node. cards_lock is held. */
static struct card *find_card(const struct devfile_shown *shown,
			      unsigned int number)
{
	struct card *card;
	const char *id;
	int length = 0, error;

	list_for_each_entry(card, &cards, entry)
		if (card->number == number)
			return card;
	card = kzalloc(sizeof(*card), GFP_KERNEL);
	if (!card)
		return ERR_PTR(-ENOMEM);
	id = devfile_find(shown->text, shown->length, "id", &length);
	snprintf(card->id, sizeof(card->id), "%.*s", length, id ?: "");
	card->number = number;
	INIT_LIST_HEAD(&card->nodes);
	device_initialize(&card->device);
	card->device.class = SOUND_CLASS;
	card->device.parent = shown->parent;
	card->device.groups = card_groups;
	card->device.release = card_release;
	error = dev_set_name(&card->device, "card%u", number);
	/* If there is a card of this number here, it keeps its name. */
	if (!error)
		error = device_add(&card->device);
	if (error) {
		put_device(&card->device);
		return ERR_PTR(error);
	}
	list_add(&card->entry, &cards);
	return card;
}

/* A card without nodes is gone. cards_lock is held. */
static void forget_card(struct card *card)
{
	if (!list_empty(&card->nodes))
		return;
	list_del(&card->entry);
	device_unregister(&card->device);
}

/* Whether a name is a node's of this card, as ALSA gives them. */
static bool is_node(const char *name, unsigned int *card)
{
	unsigned int device;
	char way;
	int end = 0;

	if (sscanf(name, "controlC%u%n", card, &end) == 1 && !name[end])
		return true;
	if (sscanf(name, "pcmC%uD%u%c%n", card, &device, &way, &end) == 3 &&
	    !name[end])
		return way == 'p' || way == 'c';
	return (sscanf(name, "midiC%uD%u%n", card, &device, &end) == 2 ||
		sscanf(name, "hwC%uD%u%n", card, &device, &end) == 2) &&
	       !name[end];
}

static struct devfile_face *show(const struct devfile_shown *shown)
{
	const char *name = shown->node + strlen("snd/");
	struct sound_face *face;
	struct device *device;
	unsigned int number;
	int error;

	if (!strstarts(shown->node, "snd/") || !is_node(name, &number) ||
	    !devfile_is_text(shown->text, shown->length))
		return ERR_PTR(-EINVAL);
	face = kzalloc(sizeof(*face), GFP_KERNEL);
	if (!face)
		return ERR_PTR(-ENOMEM);
	face->face.kind = &sluice_devfile_sound_face;
	face->number = shown->number;
	face->parent = shown->parent;
	strscpy(face->face.node, shown->node, sizeof(face->face.node));
	mutex_lock(&cards_lock);
	face->card = find_card(shown, number);
	error = PTR_ERR_OR_ZERO(face->card);
	if (!error) {
		device = device_create(SOUND_CLASS, &face->card->device,
				       face->number, NULL, "%s", name);
		error = PTR_ERR_OR_ZERO(device);
		if (error)
			forget_card(face->card);
		else
			list_add(&face->entry, &face->card->nodes);
	}
	mutex_unlock(&cards_lock);
	if (!error)
		return &face->face;
	kfree(face);
	return ERR_PTR(error);
}

/* A card whose parent goes is below that of another node of its. */
static void move_card(struct card *card, struct device *from)
{
	struct sound_face *other;

	if (card->device.parent != from || list_empty(&card->nodes))
		return;
	other = list_first_entry(&card->nodes, struct sound_face, entry);
	if (device_move(&card->device, other->parent, DPM_ORDER_NONE))
		dev_warn(&card->device, "it stays below a device that goes\n");
}

static void hide(struct devfile_face *shown)
{
	struct sound_face *face = container_of(shown, struct sound_face, face);

	mutex_lock(&cards_lock);
	device_destroy(SOUND_CLASS, face->number);
	list_del(&face->entry);
	move_card(face->card, face->parent);
	forget_card(face->card);
	mutex_unlock(&cards_lock);
	kfree(face);
}

const struct devfile_face_kind sluice_devfile_sound_face = {
	.owner = THIS_MODULE,
	.show = show,
	.hide = hide,
};
EXPORT_SYMBOL_GPL(sluice_devfile_sound_face);

MODULE_ALIAS("sluice-devfile-sound");
MODULE_DESCRIPTION("Sound cards of another domain of the Sluice hypervisor, in the class of sound cards");
MODULE_AUTHOR("The Sluice authors");
MODULE_LICENSE("GPL");
MODULE_VERSION("0.1.0");
