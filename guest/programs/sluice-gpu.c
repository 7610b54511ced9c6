/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Uses a render node as programs with Mesa do, and says what came of it in lines
 * that a scenario can expect:
 *
 *   sluice-gpu NODE FRAMES ORDER [held]
 *
 * It draws frames that are the same on each system, and tells a digest of their
 * pixels; waits for each by the descriptor of a fence; draws into a buffer that
 * it has exported and imported again; and multiplies matrices of this order in a
 * compute shader, which it checks. With `held` it waits for a line after that, and
 * draws the frames once more: so two programs are known to have had the device at
 * the same time.
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
#include <unistd.h>

#define WIDTH 320
#define HEIGHT 240
#define TRIANGLES 48
/* Invocations of the compute shader in a group, in each of two directions. */
#define GROUP 8
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

/* Triangles in front of each other, with a texture: all that frames have in common. */
static GLint prepare_scene(GLuint program)
{
	static float vertices[TRIANGLES * 3][6];
	static unsigned char texels[16][16][4];
	GLuint buffer, texture;
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
	glAttachShader(program, compile(GL_VERTEX_SHADER, vertex_source));
	glAttachShader(program, compile(GL_FRAGMENT_SHADER, fragment_source));
	link_and_use(program);
	glGenBuffers(1, &buffer);
	glBindBuffer(GL_ARRAY_BUFFER, buffer);
	glBufferData(GL_ARRAY_BUFFER, sizeof(vertices), vertices, GL_STATIC_DRAW);
	for (i = 0; i < 2; i++) {
		glVertexAttribPointer(i, 3, GL_FLOAT, GL_FALSE, sizeof(vertices[0]),
				      (void *)(i * 3 * sizeof(float)));
		glEnableVertexAttribArray(i);
	}
	glGenTextures(1, &texture);
	glBindTexture(GL_TEXTURE_2D, texture);
	glTexImage2D(GL_TEXTURE_2D, 0, GL_RGBA, 16, 16, 0, GL_RGBA, GL_UNSIGNED_BYTE,
		     texels);
	glTexParameteri(GL_TEXTURE_2D, GL_TEXTURE_MIN_FILTER, GL_NEAREST);
	glTexParameteri(GL_TEXTURE_2D, GL_TEXTURE_MAG_FILTER, GL_LINEAR);
	glEnable(GL_DEPTH_TEST);
	glViewport(0, 0, WIDTH, HEIGHT);
	return glGetUniformLocation(program, "turn");
}

static void draw(GLint turn, int frame)
{
	glUniform1f(turn, 0.1f * frame);
	glClearColor(0.25f, 0.5f, 0.75f, 1);
	glClear(GL_COLOR_BUFFER_BIT | GL_DEPTH_BUFFER_BIT);
	glDrawArrays(GL_TRIANGLES, 0, TRIANGLES * 3);
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

/* Waits by a descriptor until all is drawn. */
static void wait_by_fence(EGLDisplay display)
{
	EGLSyncKHR sync = CALL(PFNEGLCREATESYNCKHRPROC, "eglCreateSyncKHR")(
		display, EGL_SYNC_NATIVE_FENCE_ANDROID, NULL);
	struct pollfd fence = { .events = POLLIN };

	if (sync == EGL_NO_SYNC_KHR)
		fail("there is no fence");
	glFlush();
	fence.fd = CALL(PFNEGLDUPNATIVEFENCEFDANDROIDPROC,
			"eglDupNativeFenceFDANDROID")(display, sync);
	if (fence.fd < 0)
		fail("the fence has no descriptor");
	if (poll(&fence, 1, PATIENCE) != 1 || fence.revents != POLLIN)
		fail("the fence is not signalled: %#x", fence.revents);
	close(fence.fd);
	CALL(PFNEGLDESTROYSYNCKHRPROC, "eglDestroySyncKHR")(display, sync);
}

/* Draws frames, and tells a digest of all. */
static void draw_frames(EGLDisplay display, GLint turn, int frames, const char *key)
{
	uint64_t all = DIGEST_OF_NOTHING;
	char text[32];
	int frame;

	for (frame = 0; frame < frames; frame++) {
		draw(turn, frame);
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

/* Multiplies, and returns how many numbers of the product are wrong. */
static int multiply(int order)
{
	char source[1024];
	GLuint program = glCreateProgram(), buffers[3];
	size_t size = (size_t)order * order * sizeof(float);
	float *factors[2], *product;
	uint32_t state = 2;
	int wrong = 0, i, j, k;

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
	glAttachShader(program, compile(GL_COMPUTE_SHADER, source));
	link_and_use(program);
	glGenBuffers(3, buffers);
	for (i = 0; i < 3; i++) {
		float *numbers = i < 2 ? malloc(size) : NULL;

		/* Small whole numbers, of which sums are exact in any order. */
		for (j = 0; numbers && j < order * order; j++)
			numbers[j] = next_number(&state) % 16;
		if (numbers)
			factors[i] = numbers;
		glBindBufferBase(GL_SHADER_STORAGE_BUFFER, i, buffers[i]);
		glBufferData(GL_SHADER_STORAGE_BUFFER, size, numbers, GL_DYNAMIC_COPY);
	}
	glDispatchCompute(order / GROUP, order / GROUP, 1);
	glMemoryBarrier(GL_BUFFER_UPDATE_BARRIER_BIT);
	product = glMapBufferRange(GL_SHADER_STORAGE_BUFFER, 0, size, GL_MAP_READ_BIT);
	if (!product)
		fail("the product cannot be read");
	for (i = 0; i < order; i++)
		for (j = 0; j < order; j++) {
			float sum = 0;

			for (k = 0; k < order; k++)
				sum += factors[0][i * order + k] *
				       factors[1][k * order + j];
			wrong += product[i * order + j] != sum;
		}
	glUnmapBuffer(GL_SHADER_STORAGE_BUFFER);
	if (glGetError() != GL_NO_ERROR)
		fail("the matrices cannot be multiplied");
	return wrong;
}

int main(int count, char **arguments)
{
	static const EGLint version[] = {
		EGL_CONTEXT_MAJOR_VERSION, 3, EGL_CONTEXT_MINOR_VERSION, 1, EGL_NONE,
	};
	int frames, order, node;
	struct gbm_device *device;
	struct gbm_bo *buffer;
	EGLDisplay display;
	EGLContext context;
	GLuint program, colour;
	char text[32];
	GLint turn;

	if (count != 4 && count != 5)
		fail("sluice-gpu NODE FRAMES ORDER [held]");
	frames = atoi(arguments[2]);
	order = atoi(arguments[3]) / GROUP * GROUP;
	node = open(arguments[1], O_RDWR | O_CLOEXEC);
	device = node < 0 ? NULL : gbm_create_device(node);
	if (!device)
		fail("%s is no render node", arguments[1]);
	display = eglGetPlatformDisplay(EGL_PLATFORM_GBM_KHR, device, NULL);
	if (!eglInitialize(display, NULL, NULL) || !eglBindAPI(EGL_OPENGL_ES_API))
		fail("there is no OpenGL ES");
	context = eglCreateContext(display, EGL_NO_CONFIG_KHR, EGL_NO_CONTEXT, version);
	if (context == EGL_NO_CONTEXT ||
	    !eglMakeCurrent(display, EGL_NO_SURFACE, EGL_NO_SURFACE, context))
		fail("there is no OpenGL ES 3.1");
	result("gpu_renderer", (const char *)glGetString(GL_RENDERER));
	result("gpu_version", (const char *)glGetString(GL_VERSION));

	program = glCreateProgram();
	turn = prepare_scene(program);
	glGenRenderbuffers(1, &colour);
	glBindRenderbuffer(GL_RENDERBUFFER, colour);
	glRenderbufferStorage(GL_RENDERBUFFER, GL_RGBA8, WIDTH, HEIGHT);
	use_target(colour);
	draw_frames(display, turn, frames, "gpu_frames");

	buffer = gbm_bo_create(device, WIDTH, HEIGHT, GBM_FORMAT_ARGB8888,
			       GBM_BO_USE_RENDERING | GBM_BO_USE_LINEAR);
	if (!buffer)
		fail("there is no buffer to share");
	use_target(import_buffer(display, buffer));
	draw(turn, 0);
	snprintf(text, sizeof(text), "%016llx",
		 (unsigned long long)digest_frame(DIGEST_OF_NOTHING));
	result("gpu_shared", text);

	snprintf(text, sizeof(text), "%d", multiply(order));
	result("gpu_wrong", text);
	if (count == 5) {
		if (!fgets(text, sizeof(text), stdin))
			fail("there is no line");
		glUseProgram(program);
		draw_frames(display, turn, frames, "gpu_again");
	}
	return 0;
}
