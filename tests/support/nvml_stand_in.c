/* Cards as a driver would show them: enough of libnvidia-ml.so.1 for the real nvidia-ml-py.
   CARDS is how many (two), SICK the index of one that has fallen off the bus. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CARDS_MAX 16
#define ERROR_GPU_IS_LOST 15

typedef struct { unsigned long long total, free, used; } memory_t;
static int cards[CARDS_MAX];

static unsigned int number(const char *name, unsigned int otherwise) {
    const char *told = getenv(name);
    return told ? (unsigned int)atoi(told) : otherwise;
}

int nvmlInit_v2(void) { return 0; }
int nvmlInitWithFlags(unsigned int flags) { (void)flags; return 0; }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int code) { (void)code; return "stand-in"; }
int nvmlDeviceGetCount_v2(unsigned int *count) { *count = number("CARDS", 2); return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **card) {
    if (index == number("SICK", CARDS_MAX)) return ERROR_GPU_IS_LOST;
    cards[index] = (int)index;
    *card = &cards[index];
    return 0;
}
int nvmlDeviceGetName(void *card, char *name, unsigned int length) {
    (void)card;
    snprintf(name, length, "NVIDIA H100 80GB HBM3");
    return 0;
}
int nvmlDeviceGetUUID(void *card, char *uuid, unsigned int length) {
    snprintf(uuid, length, "GPU-0000000%d-aaaa-bbbb-cccc-dddddddddddd", *(int *)card);
    return 0;
}
int nvmlDeviceGetMemoryInfo(void *card, memory_t *memory) {
    (void)card;
    memset(memory, 0, sizeof *memory);
    memory->total = 81559ULL * 1024 * 1024;
    return 0;
}
