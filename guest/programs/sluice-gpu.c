/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Uses a render node as programs with Mesa do, and says what came of it in lines
 * that a scenario can expect:
 *
 *   sluice-gpu NODE FRAMES ORDER [held]
 *   sluice-gpu NODE measured
 *   sluice-gpu NODE stream SECONDS TIMES DEPTH
 *
 * It draws frames that are the same on each system, and tells a digest of their
 * pixels; waits for each by the descriptor of a fence; draws into a buffer that
 * it has exported and imported again; and multiplies matrices of this order in a
 * compute shader, which it checks. With `held` it waits for a line after that, and
 * draws the frames once more: so two programs are known to have had the device at
 * the same time.
 *
 * With `measured` it does what lines say, "WORK TIMES", until one says "end", and
 * marks where the work of a line begins and ends for who counts instructions from
 * outside (bench/instructions.rs). The work of a line with 0 is prepared, and not
 * marked. WORK is one of these:
 *
 *   triangles  a frame of the scene above
 *   vbo        a frame of a ring of 6,050 triangles, out of a buffer of the card's
 *   arrays     the same out of the program's own memory
 *   draws      the same in 550 calls out of a buffer of the card's
 *   ORDER      a product: factors are handed over, multiplied, and what comes of it
 *              is read and compared
 *
 * A frame is drawn when the descriptor of its fence says so, and is not read.
 *
 * With `stream` it waits for a line, and draws frames for so many seconds, each of the
 * ring so many times over, and sends so many before the first one is drawn. It tells
 * how many there were. TIMES of 0 is the 48 triangles.
 *
 * Sources: EGL 1.5 with EGL_KHR_platform_gbm, EGL_KHR_surfaceless_context,
 * EGL_ANDROID_native_fence_sync and EGL_EXT_image_dma_buf_import; OpenGL ES 3.1.
 */
#include <EGL/egl.h>
#include <EGL/eglext.h>
#include <GLES3/gl31.h>
#include <GLES2/gl2ext.h> /* needs those before it */
#include <fcntl.h>
#include <gbm.h>
#include <poll.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define WIDTH 320
#define HEIGHT 240
#define TRIANGLES 48
/* Pieces of the ring, along it and around it; a piece is two triangles. */
#define PIECES 55
#define RING (PIECES * PIECES * 2)
/* Cosine and sine of a turn by one piece. */
#define COSINE 0.9934817f
#define SINE 0.1139914f
/* Calls that draw the ring with 11 triangles each. */
#define DRAWS (PIECES * 10)
/* Numbers of a vertex: where it is, and its colour. */
#define NUMBERS 6
/* How often work is done before it is marked: the first ones fill caches. */
#define FIRST 4
/* Orders of products that are measured in one run, at most. */
#define ORDERS 8
/* Invocations of the compute shader in a group, in each of two directions. */
#define GROUP 8
/* Frames of a stream that can be under way at once. */
#define DEPTHS 64
/* Milliseconds that a frame may take. */
#define PATIENCE 60000

static void fail(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	fputs("sluice-gpu: ", stdout);
	vprintf(format, arguments);
	va_end(arguments);
	printf(" (EGL %#x)\n", eglGetError());
	exit(1);
}

/* FNV-1a of 64 bits. */
static uint64_t digest(uint64_t so_far, const void *data, size_t size)
{
	const unsigned char *bytes = data;

	while (size--)
		so_far = (so_far ^ *bytes++) * 0x100000001b3;
	return so_far;
}
#define DIGEST_OF_NOTHING 0xcbf29ce484222325

/* A value is one word: what is none of its characters becomes '_'. */
static void result(const char *key, const char *value)
{
	printf("SLUICE-RESULT %s=", key);
	for (; *value; value++)
		putchar(strchr(" \t()", *value) ? '_' : *value);
	putchar('\n');
	fflush(stdout);
}

static void *allot(size_t size)
{
	void *memory = malloc(size);

	if (!memory)
		fail("there is no memory for %zu bytes", size);
	return memory;
}

static GLuint compile(GLenum kind, const char *source)
{
	GLuint shader = glCreateShader(kind);
	char log[1024] = "";
	GLint good;

	glShaderSource(shader, 1, &source, NULL);
	glCompileShader(shader);
	glGetShaderiv(shader, GL_COMPILE_STATUS, &good);
	glGetShaderInfoLog(shader, sizeof(log), NULL, log);
	if (!good)
		fail("a shader does not compile: %s", log);
	return shader;
}

static void link_and_use(GLuint program)
{
	char log[1024] = "";
	GLint good;

	glLinkProgram(program);
	glGetProgramiv(program, GL_LINK_STATUS, &good);
	glGetProgramInfoLog(program, sizeof(log), NULL, log);
	if (!good)
		fail("a program does not link: %s", log);
	glUseProgram(program);
}

static const char *vertex_source =
	"#version 310 es\n"
	"uniform float turn;\n"
	"layout(location = 0) in vec3 place;\n"
	"layout(location = 1) in vec3 colour;\n"
	"out vec3 shade;\n"
	"out vec2 spot;\n"
	"void main() {\n"
	"  mat2 turned = mat2(cos(turn), sin(turn), -sin(turn), cos(turn));\n"
	"  gl_Position = vec4(turned * place.xy, place.z, 1.0);\n"
	"  shade = colour;\n"
	"  spot = place.xy;\n"
	"}\n";

static const char *fragment_source =
	"#version 310 es\n"
	"precision highp float;\n"
	"uniform sampler2D pattern;\n"
	"in vec3 shade;\n"
	"in vec2 spot;\n"
	"out vec4 pixel;\n"
	"void main() { pixel = vec4(shade * texture(pattern, spot * 4.0).rgb, 1.0); }\n";

/* Numbers that are the same everywhere. */
static uint32_t next_number(uint32_t *state)
{
	*state = *state * 1664525 + 1013904223;
	return *state >> 8;
}

static float next_fraction(uint32_t *state)
{
	return (float)(next_number(state) & 0xffff) / 65536;
}

/* What frames are made of. */
struct scene {
	/* Of the program: how far all is turned. */
	GLint turn;
	/* Of the program, too. */
	GLuint program;
	/* Buffers with the vertices of the triangles, and of the ring. */
	GLuint triangles, ring;
	/* The vertices of the ring in the program's own memory. */
	float (*vertices)[NUMBERS];
};

static GLuint buffer_of(const void *data, size_t size)
{
	GLuint buffer;

	glGenBuffers(1, &buffer);
	glBindBuffer(GL_ARRAY_BUFFER, buffer);
	glBufferData(GL_ARRAY_BUFFER, size, data, GL_STATIC_DRAW);
	return buffer;
}

/* Has vertices taken out of a buffer, or, where that is 0, out of the program's memory. */
static void use_vertices(GLuint buffer, float (*vertices)[NUMBERS])
{
	int i;

	glBindBuffer(GL_ARRAY_BUFFER, buffer);
	for (i = 0; i < 2; i++) {
		glVertexAttribPointer(i, 3, GL_FLOAT, GL_FALSE, sizeof(*vertices),
				      (char *)vertices + i * 3 * sizeof(float));
		glEnableVertexAttribArray(i);
	}
}

/* Triangles in front of each other, with a texture: all that frames have in common. */
static struct scene prepare_scene(void)
{
	static float vertices[TRIANGLES * 3][NUMBERS];
	static unsigned char texels[16][16][4];
	struct scene scene = { .program = glCreateProgram() };
	GLuint texture;
	uint32_t state = 1;
	int i, j;

	for (i = 0; i < TRIANGLES * 3; i++) {
		float *vertex = vertices[i];

		vertex[0] = next_fraction(&state) * 2 - 1;
		vertex[1] = next_fraction(&state) * 2 - 1;
		vertex[2] = (float)(i / 3) / TRIANGLES;
		for (j = 3; j < 6; j++)
			vertex[j] = next_fraction(&state);
	}
	for (i = 0; i < 256; i++)
		for (j = 0; j < 4; j++)
			texels[i / 16][i % 16][j] = 128 + next_number(&state) % 128;
	glAttachShader(scene.program, compile(GL_VERTEX_SHADER, vertex_source));
	glAttachShader(scene.program, compile(GL_FRAGMENT_SHADER, fragment_source));
	link_and_use(scene.program);
	scene.triangles = buffer_of(vertices, sizeof(vertices));
	use_vertices(scene.triangles, NULL);
	glGenTextures(1, &texture);
	glBindTexture(GL_TEXTURE_2D, texture);
	glTexImage2D(GL_TEXTURE_2D, 0, GL_RGBA, 16, 16, 0, GL_RGBA, GL_UNSIGNED_BYTE,
		     texels);
	glTexParameteri(GL_TEXTURE_2D, GL_TEXTURE_MIN_FILTER, GL_NEAREST);
	glTexParameteri(GL_TEXTURE_2D, GL_TEXTURE_MAG_FILTER, GL_LINEAR);
	glEnable(GL_DEPTH_TEST);
	glViewport(0, 0, WIDTH, HEIGHT);
	scene.turn = glGetUniformLocation(scene.program, "turn");
	return scene;
}

/*
 * A corner of the ring's pieces, which is in one of these directions along it and in
 * one around it; its colour is where it is.
 */
static void place_corner(float *vertex, float (*directions)[2], int along, int around)
{
	float *way = directions[along % PIECES], *turned = directions[around % PIECES];
	float far = 0.6f + 0.25f * turned[0];

	vertex[0] = far * way[0];
	vertex[1] = far * way[1];
	vertex[2] = 0.25f * turned[1];
	vertex[3] = (float)along / PIECES;
	vertex[4] = (float)around / PIECES;
	vertex[5] = 1 - vertex[3];
}

static void prepare_ring(struct scene *scene)
{
	static const int corners[6][2] = { { 0, 0 }, { 1, 0 }, { 1, 1 },
					   { 0, 0 }, { 1, 1 }, { 0, 1 } };
	size_t size = sizeof(*scene->vertices) * RING * 3;
	float directions[PIECES][2] = { { 1, 0 } };
	int i;

	for (i = 1; i < PIECES; i++) {
		float *last = directions[i - 1];

		directions[i][0] = COSINE * last[0] - SINE * last[1];
		directions[i][1] = SINE * last[0] + COSINE * last[1];
	}
	scene->vertices = allot(size);
	for (i = 0; i < RING * 3; i++) {
		const int *corner = corners[i % 6];
		int piece = i / 6;

		place_corner(scene->vertices[i], directions, piece / PIECES + corner[0],
			     piece % PIECES + corner[1]);
	}
	scene->ring = buffer_of(scene->vertices, size);
}

/* Draws so many triangles out of the vertices in use, by so many calls. */
static void draw(GLint turn, int frame, int triangles, int calls)
{
	int vertices = triangles * 3 / calls, i;

	glUniform1f(turn, 0.1f * frame);
	glClearColor(0.25f, 0.5f, 0.75f, 1);
	glClear(GL_COLOR_BUFFER_BIT | GL_DEPTH_BUFFER_BIT);
	for (i = 0; i < calls; i++)
		glDrawArrays(GL_TRIANGLES, i * vertices, vertices);
}

static uint64_t digest_frame(uint64_t so_far)
{
	static unsigned char pixels[HEIGHT][WIDTH][4];

	glReadPixels(0, 0, WIDTH, HEIGHT, GL_RGBA, GL_UNSIGNED_BYTE, pixels);
	if (glGetError() != GL_NO_ERROR)
		fail("the frame cannot be read");
	return digest(so_far, pixels, sizeof(pixels));
}

/* What frames are drawn into; `colour` is a renderbuffer. */
static void use_target(GLuint colour)
{
	GLuint target, depth;

	glGenFramebuffers(1, &target);
	glBindFramebuffer(GL_FRAMEBUFFER, target);
	glGenRenderbuffers(1, &depth);
	glBindRenderbuffer(GL_RENDERBUFFER, depth);
	glRenderbufferStorage(GL_RENDERBUFFER, GL_DEPTH_COMPONENT16, WIDTH, HEIGHT);
	glFramebufferRenderbuffer(GL_FRAMEBUFFER, GL_DEPTH_ATTACHMENT,
				  GL_RENDERBUFFER, depth);
	glFramebufferRenderbuffer(GL_FRAMEBUFFER, GL_COLOR_ATTACHMENT0,
				  GL_RENDERBUFFER, colour);
	if (glCheckFramebufferStatus(GL_FRAMEBUFFER) != GL_FRAMEBUFFER_COMPLETE)
		fail("nothing can be drawn into");
}

/* A call of an extension. */
#define CALL(type, name) ((type)eglGetProcAddress(name))

/* A descriptor that says when all is drawn. */
static int fence_of(EGLDisplay display)
{
	EGLSyncKHR sync = CALL(PFNEGLCREATESYNCKHRPROC, "eglCreateSyncKHR")(
		display, EGL_SYNC_NATIVE_FENCE_ANDROID, NULL);
	int fence;

	if (sync == EGL_NO_SYNC_KHR)
		fail("there is no fence");
	glFlush();
	fence = CALL(PFNEGLDUPNATIVEFENCEFDANDROIDPROC,
		     "eglDupNativeFenceFDANDROID")(display, sync);
	if (fence < 0)
		fail("the fence has no descriptor");
	CALL(PFNEGLDESTROYSYNCKHRPROC, "eglDestroySyncKHR")(display, sync);
	return fence;
}

static void wait_for(int descriptor)
{
	struct pollfd fence = { .fd = descriptor, .events = POLLIN };

	if (poll(&fence, 1, PATIENCE) != 1 || fence.revents != POLLIN)
		fail("the fence is not signalled: %#x", fence.revents);
	close(descriptor);
}

static void wait_by_fence(EGLDisplay display)
{
	wait_for(fence_of(display));
}

/* Draws frames, and tells a digest of all. */
static void draw_frames(EGLDisplay display, GLint turn, int frames, const char *key)
{
	uint64_t all = DIGEST_OF_NOTHING;
	char text[32];
	int frame;

	for (frame = 0; frame < frames; frame++) {
		draw(turn, frame, TRIANGLES, 1);
		wait_by_fence(display);
		all = digest_frame(all);
	}
	snprintf(text, sizeof(text), "%016llx", (unsigned long long)all);
	result(key, text);
}

/* A buffer of the device's as a renderbuffer, by way of a descriptor. */
static GLuint import_buffer(EGLDisplay display, struct gbm_bo *buffer)
{
	int descriptor = gbm_bo_get_fd(buffer);
	const EGLint attributes[] = {
		EGL_WIDTH, WIDTH, EGL_HEIGHT, HEIGHT,
		EGL_LINUX_DRM_FOURCC_EXT, GBM_FORMAT_ARGB8888,
		EGL_DMA_BUF_PLANE0_FD_EXT, descriptor,
		EGL_DMA_BUF_PLANE0_OFFSET_EXT, 0,
		EGL_DMA_BUF_PLANE0_PITCH_EXT, gbm_bo_get_stride(buffer),
		EGL_NONE,
	};
	EGLImageKHR image;
	GLuint colour;

	if (descriptor < 0)
		fail("the buffer is not exported");
	image = CALL(PFNEGLCREATEIMAGEKHRPROC, "eglCreateImageKHR")(
		display, EGL_NO_CONTEXT, EGL_LINUX_DMA_BUF_EXT, NULL, attributes);
	if (image == EGL_NO_IMAGE_KHR)
		fail("the buffer is not imported");
	close(descriptor);
	glGenRenderbuffers(1, &colour);
	glBindRenderbuffer(GL_RENDERBUFFER, colour);
	CALL(PFNGLEGLIMAGETARGETRENDERBUFFERSTORAGEOESPROC,
	     "glEGLImageTargetRenderbufferStorageOES")(GL_RENDERBUFFER, image);
	return colour;
}

/* Matrices of an order, and what multiplies them. */
struct product {
	int order;
	size_t size;
	GLuint program, buffers[3];
	/* Two left factors, whose products with the right one differ in each row. */
	float *left[2], *right, *expected[2];
};

/* Numbers of the factors are small and whole: sums are exact in any order. */
static void prepare_factors(struct product *product)
{
	int order = product->order, count = order * order, i, j, k;
	int *sums = allot(count * sizeof(int));
	uint32_t state = 2;

	memset(sums, 0, count * sizeof(int));
	product->right = allot(product->size);
	for (i = 0; i < 2; i++) {
		product->left[i] = allot(product->size);
		product->expected[i] = allot(product->size);
	}
	for (i = 0; i < count; i++)
		product->left[0][i] = next_number(&state) % 16;
	for (i = 0; i < count; i++)
		product->right[i] = next_number(&state) % 16;
	for (i = 0; i < order; i++)
		for (k = 0; k < order; k++) {
			int factor = product->left[0][i * order + k];

			for (j = 0; j < order; j++)
				sums[i * order + j] += factor *
					(int)product->right[k * order + j];
		}
	for (i = 0; i < count; i++)
		product->expected[0][i] = sums[i];
	/* The other left factor has the same rows, each one further up. */
	for (i = 0; i < count; i++) {
		product->left[1][i] = product->left[0][(i + order) % count];
		product->expected[1][i] = product->expected[0][(i + order) % count];
	}
	free(sums);
}

static void prepare_product(struct product *product, int order)
{
	char source[1024];
	int i;

	product->order = order;
	product->size = (size_t)order * order * sizeof(float);
	product->program = glCreateProgram();
	snprintf(source, sizeof(source),
		 "#version 310 es\n"
		 "layout(local_size_x = %d, local_size_y = %d) in;\n"
		 "layout(std430, binding = 0) readonly buffer Left { float a[]; };\n"
		 "layout(std430, binding = 1) readonly buffer Right { float b[]; };\n"
		 "layout(std430, binding = 2) writeonly buffer Product { float c[]; };\n"
		 "void main() {\n"
		 "  uint row = gl_GlobalInvocationID.y, column = gl_GlobalInvocationID.x;\n"
		 "  float sum = 0.0;\n"
		 "  for (uint i = 0u; i < %du; i++)\n"
		 "    sum += a[row * %du + i] * b[i * %du + column];\n"
		 "  c[row * %du + column] = sum;\n"
		 "}\n",
		 GROUP, GROUP, order, order, order, order);
	glAttachShader(product->program, compile(GL_COMPUTE_SHADER, source));
	link_and_use(product->program);
	glGenBuffers(3, product->buffers);
	for (i = 0; i < 3; i++) {
		glBindBuffer(GL_SHADER_STORAGE_BUFFER, product->buffers[i]);
		glBufferData(GL_SHADER_STORAGE_BUFFER, product->size, NULL,
			     GL_DYNAMIC_COPY);
	}
	prepare_factors(product);
}

static void hand_over(const struct product *product, int factor, const float *numbers)
{
	glBindBuffer(GL_SHADER_STORAGE_BUFFER, product->buffers[factor]);
	glBufferSubData(GL_SHADER_STORAGE_BUFFER, 0, product->size, numbers);
}

/* Multiplies with one of the left factors, and returns how many numbers are wrong. */
static int multiply(const struct product *product, int which)
{
	const float *expected = product->expected[which];
	int groups = product->order / GROUP, wrong = 0, i;
	const float *numbers;

	glUseProgram(product->program);
	for (i = 0; i < 3; i++)
		glBindBufferBase(GL_SHADER_STORAGE_BUFFER, i, product->buffers[i]);
	hand_over(product, 0, product->left[which]);
	hand_over(product, 1, product->right);
	glDispatchCompute(groups, groups, 1);
	glMemoryBarrier(GL_BUFFER_UPDATE_BARRIER_BIT);
	glBindBuffer(GL_SHADER_STORAGE_BUFFER, product->buffers[2]);
	numbers = glMapBufferRange(GL_SHADER_STORAGE_BUFFER, 0, product->size,
				   GL_MAP_READ_BIT);
	if (!numbers)
		fail("the product cannot be read");
	if (memcmp(numbers, expected, product->size))
		for (i = 0; i < product->order * product->order; i++)
			wrong += numbers[i] != expected[i];
	glUnmapBuffer(GL_SHADER_STORAGE_BUFFER);
	if (glGetError() != GL_NO_ERROR)
		fail("the matrices cannot be multiplied");
	return wrong;
}

/* Tells the counter that this point was reached: a NOP that no compiler emits. */
static void mark(void)
{
	__asm__ volatile(".byte 0x0f, 0x1f, 0x80, 0x4d, 0x41, 0x52, 0x4b" ::: "memory");
}

/* Multiplies so often, and tells how many numbers were wrong. */
static void measure_products(int order, int times)
{
	static struct product products[ORDERS];
	struct product *product = products;
	int rounds = times ? times : FIRST, wrong = 0, i;

	while (product < products + ORDERS && product->order && product->order != order)
		product++;
	if (product == products + ORDERS)
		fail("these are more than %d orders", ORDERS);
	if (!product->order)
		prepare_product(product, order);
	if (times)
		mark();
	for (i = 0; i < rounds; i++)
		wrong += multiply(product, i % 2);
	if (times)
		mark();
	printf("SLUICE-RESULT at=%d times=%d wrong=%d\n", order, times, wrong);
}

/* Draws so many frames, and tells a digest of the last one. */
static void measure_frames(EGLDisplay display, struct scene *scene, const char *work,
			   int times)
{
	int is_ring = strcmp(work, "triangles") != 0, frame;
	int triangles = is_ring ? RING : TRIANGLES;
	int calls = strcmp(work, "draws") ? 1 : DRAWS;

	if (is_ring && !scene->vertices)
		prepare_ring(scene);
	glUseProgram(scene->program);
	if (!is_ring)
		use_vertices(scene->triangles, NULL);
	else if (!strcmp(work, "arrays"))
		use_vertices(0, scene->vertices);
	else
		use_vertices(scene->ring, NULL);
	if (times)
		mark();
	for (frame = 0; frame < (times ? times : FIRST); frame++) {
		draw(scene->turn, frame, triangles, calls);
		wait_by_fence(display);
	}
	if (times)
		mark();
	printf("SLUICE-RESULT at=%s times=%d digest=%016llx\n", work, times,
	       (unsigned long long)digest_frame(DIGEST_OF_NOTHING));
}

static double seconds_now(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec + now.tv_nsec / 1e9;
}

/* Draws frames for so many seconds, of which so many are under way at once, and tells how many. */
static void stream(EGLDisplay display, struct scene *scene, int seconds, int times,
		   int depth)
{
	int fences[DEPTHS], frames = 0, i;
	char text[32];
	double end;

	if (depth < 1 || depth > DEPTHS)
		fail("1 to %d frames can be under way, not %d", DEPTHS, depth);
	if (times) {
		prepare_ring(scene);
		use_vertices(scene->ring, NULL);
	}
	for (i = 0; i < FIRST; i++) {
		draw(scene->turn, i, times ? RING : TRIANGLES, 1);
		wait_by_fence(display);
	}
	result("gpu_stream", "ready");
	if (!fgets(text, sizeof(text), stdin))
		fail("there is no line");
	end = seconds_now() + seconds;
	for (; seconds_now() < end; frames++) {
		draw(scene->turn, frames, times ? RING : TRIANGLES, 1);
		for (i = 1; i < times; i++)
			glDrawArrays(GL_TRIANGLES, 0, RING * 3);
		if (frames >= depth)
			wait_for(fences[frames % depth]);
		fences[frames % depth] = fence_of(display);
	}
	for (i = frames < depth ? 0 : frames - depth; i < frames; i++)
		wait_for(fences[i % depth]);
	snprintf(text, sizeof(text), "%d", frames);
	result("gpu_streamed", text);
}

/* Does what lines say. */
static void measure(EGLDisplay display, struct scene *scene)
{
	char line[64], work[16];
	int times, order;

	result("gpu_measured", "ready");
	for (;;) {
		if (!fgets(line, sizeof(line), stdin))
			fail("there is no line");
		if (!strcmp(line, "end\n"))
			return;
		if (sscanf(line, "%15s %d", work, &times) != 2 || times < 0)
			fail("a line that says nothing: %s", line);
		order = atoi(work) / GROUP * GROUP;
		if (order > 0)
			measure_products(order, times);
		else if (!strcmp(work, "triangles") || !strcmp(work, "vbo") ||
			 !strcmp(work, "arrays") || !strcmp(work, "draws"))
			measure_frames(display, scene, work, times);
		else
			fail("nobody knows this work: %s", work);
		fflush(stdout);
	}
}

/* A context that draws on no surface. */
static EGLDisplay open_display(struct gbm_device *device)
{
	static const EGLint version[] = {
		EGL_CONTEXT_MAJOR_VERSION, 3, EGL_CONTEXT_MINOR_VERSION, 1, EGL_NONE,
	};
	EGLDisplay display = eglGetPlatformDisplay(EGL_PLATFORM_GBM_KHR, device, NULL);
	EGLContext context;

	if (!eglInitialize(display, NULL, NULL) || !eglBindAPI(EGL_OPENGL_ES_API))
		fail("there is no OpenGL ES");
	context = eglCreateContext(display, EGL_NO_CONFIG_KHR, EGL_NO_CONTEXT, version);
	if (context == EGL_NO_CONTEXT ||
	    !eglMakeCurrent(display, EGL_NO_SURFACE, EGL_NO_SURFACE, context))
		fail("there is no OpenGL ES 3.1");
	return display;
}

int main(int count, char **arguments)
{
	int measured = count == 3 && !strcmp(arguments[2], "measured");
	int streams = count == 6 && !strcmp(arguments[2], "stream");
	int frames, order, node;
	struct gbm_device *device;
	struct gbm_bo *buffer;
	EGLDisplay display;
	struct product product;
	struct scene scene;
	GLuint colour;
	char text[32];

	if (!measured && !streams && count != 4 && count != 5)
		fail("sluice-gpu NODE FRAMES ORDER [held], sluice-gpu NODE measured, "
		     "sluice-gpu NODE stream SECONDS TIMES DEPTH");
	node = open(arguments[1], O_RDWR | O_CLOEXEC);
	device = node < 0 ? NULL : gbm_create_device(node);
	if (!device)
		fail("%s is no render node", arguments[1]);
	display = open_display(device);
	result("gpu_renderer", (const char *)glGetString(GL_RENDERER));
	result("gpu_version", (const char *)glGetString(GL_VERSION));

	scene = prepare_scene();
	glGenRenderbuffers(1, &colour);
	glBindRenderbuffer(GL_RENDERBUFFER, colour);
	glRenderbufferStorage(GL_RENDERBUFFER, GL_RGBA8, WIDTH, HEIGHT);
	use_target(colour);
	if (measured) {
		measure(display, &scene);
		return 0;
	}
	if (streams) {
		stream(display, &scene, atoi(arguments[3]), atoi(arguments[4]),
		       atoi(arguments[5]));
		return 0;
	}
	frames = atoi(arguments[2]);
	order = atoi(arguments[3]) / GROUP * GROUP;
	draw_frames(display, scene.turn, frames, "gpu_frames");

	buffer = gbm_bo_create(device, WIDTH, HEIGHT, GBM_FORMAT_ARGB8888,
			       GBM_BO_USE_RENDERING | GBM_BO_USE_LINEAR);
	if (!buffer)
		fail("there is no buffer to share");
	use_target(import_buffer(display, buffer));
	draw(scene.turn, 0, TRIANGLES, 1);
	snprintf(text, sizeof(text), "%016llx",
		 (unsigned long long)digest_frame(DIGEST_OF_NOTHING));
	result("gpu_shared", text);

	prepare_product(&product, order);
	snprintf(text, sizeof(text), "%d", multiply(&product, 0));
	result("gpu_wrong", text);
	if (count == 5) {
		if (!fgets(text, sizeof(text), stdin))
			fail("there is no line");
		glUseProgram(scene.program);
		draw_frames(display, scene.turn, frames, "gpu_again");
	}
	return 0;
}
