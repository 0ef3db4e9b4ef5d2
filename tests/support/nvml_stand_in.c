/* Cards as a driver would show them: enough of libnvidia-ml.so.1 for the real nvidia-ml-py.
   CARDS is how many (two), SICK the index of one that has fallen off the bus. NVML_STAND_IN names a file that says what
   else there is to tell, read again at every call; lines of

       hidden CARD                 it is not listed any more
       lost CARD                   it is listed, and whatever is asked of it fails
       set CARD WHAT NUMBER        used, util, temperature, power, corrected, uncorrected, pending, failed, up, down
       xid CARD CODE               an event; those that are there when an event set is made are old news            */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define CARDS_MAX 16
#define ERROR_NOT_SUPPORTED 3
#define ERROR_TIMEOUT 10
#define ERROR_GPU_IS_LOST 15
#define EVENT_XID 8

typedef struct { unsigned long long total, free, used; } memory_t;
typedef struct { unsigned int gpu, memory; } rates_t;
typedef struct { void *device; unsigned long long type, data; unsigned int gpu_instance, compute_instance; } event_t;
static int cards[CARDS_MAX];
static unsigned int xids_told;

static unsigned int number(const char *name, unsigned int otherwise) {
    const char *told = getenv(name);
    return told ? (unsigned int)atoi(told) : otherwise;
}

/* The last number that the file has for this card and word; or, for a bare line, whether it is there. */
static int told(int card, const char *word, long long *value) {
    const char *path = getenv("NVML_STAND_IN");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[128], verb[16], what[16];
    int of, found = 0;
    long long amount;
    if (!file) return 0;
    while (fgets(line, sizeof line, file)) {
        if (value && sscanf(line, "set %d %15s %lld", &of, what, &amount) == 3 && of == card && !strcmp(what, word)) {
            *value = amount;
            found = 1;
        } else if (!value && sscanf(line, "%15s %d", verb, &of) == 2 && of == card && !strcmp(verb, word)) {
            found = 1;
        }
    }
    fclose(file);
    return found;
}

/* The event of this place among all; or how many there are, if card is NULL. */
static unsigned int event(unsigned int place, int *card, unsigned long long *code) {
    const char *path = getenv("NVML_STAND_IN");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[128];
    int of;
    unsigned int count = 0;
    unsigned long long xid;
    if (!file) return 0;
    while (fgets(line, sizeof line, file)) {
        if (!strchr(line, '\n') || sscanf(line, "xid %d %llu", &of, &xid) != 2) continue;
        if (card && count == place) {
            *card = of;
            *code = xid;
            fclose(file);
            return 1;
        }
        count++;
    }
    fclose(file);
    return card ? 0 : count;
}

static int index_of(void *card) { return *(int *)card; }
static int is_gone(void *card) { return told(index_of(card), "lost", NULL) || told(index_of(card), "hidden", NULL); }
static int tell(void *card, const char *word, unsigned int *answer) {
    long long value;
    if (is_gone(card)) return ERROR_GPU_IS_LOST;
    if (!told(index_of(card), word, &value)) return ERROR_NOT_SUPPORTED;
    *answer = (unsigned int)value;
    return 0;
}

int nvmlInit_v2(void) { return 0; }
int nvmlInitWithFlags(unsigned int flags) { (void)flags; return 0; }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int code) { (void)code; return "stand-in"; }
int nvmlDeviceGetCount_v2(unsigned int *count) { *count = number("CARDS", 2); return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **card) {
    if (index == number("SICK", CARDS_MAX) || told((int)index, "hidden", NULL)) return ERROR_GPU_IS_LOST;
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
    snprintf(uuid, length, "GPU-0000000%d-aaaa-bbbb-cccc-dddddddddddd", index_of(card));
    return 0;
}
int nvmlDeviceGetMemoryInfo(void *card, memory_t *memory) {
    long long used = 0;
    if (is_gone(card)) return ERROR_GPU_IS_LOST;
    memset(memory, 0, sizeof *memory);
    memory->total = 81559ULL * 1024 * 1024;
    if (told(index_of(card), "used", &used)) memory->used = (unsigned long long)used;
    return 0;
}
int nvmlDeviceGetUtilizationRates(void *card, rates_t *rates) {
    rates->memory = 0;
    return tell(card, "util", &rates->gpu);
}
int nvmlDeviceGetTemperature(void *card, unsigned int sensor, unsigned int *celsius) {
    (void)sensor;
    return tell(card, "temperature", celsius);
}
int nvmlDeviceGetPowerUsage(void *card, unsigned int *milliwatts) { return tell(card, "power", milliwatts); }
int nvmlDeviceGetTotalEccErrors(void *card, unsigned int kind, unsigned int counter, unsigned long long *count) {
    unsigned int errors = 0;
    int code = tell(card, kind ? "uncorrected" : "corrected", &errors);
    (void)counter;
    *count = errors;
    return code;
}
int nvmlDeviceGetRemappedRows(void *card, unsigned int *corrected, unsigned int *uncorrected, unsigned int *pending,
                              unsigned int *failed) {
    *corrected = *uncorrected = *pending = *failed = 0;
    tell(card, "pending", pending);
    tell(card, "failed", failed);
    return is_gone(card) ? ERROR_GPU_IS_LOST : 0;
}
int nvmlDeviceGetNvLinkState(void *card, unsigned int link, unsigned int *is_active) {
    unsigned int up = 0, down = 0;
    tell(card, "up", &up);
    tell(card, "down", &down);
    *is_active = link < up;
    return link < up + down ? 0 : ERROR_NOT_SUPPORTED;
}
int nvmlEventSetCreate(void **set) {
    xids_told = event(0, NULL, NULL);
    *set = &xids_told;
    return 0;
}
int nvmlDeviceRegisterEvents(void *card, unsigned long long types, void *set) {
    (void)card; (void)types; (void)set;
    return 0;
}
int nvmlEventSetFree(void *set) { (void)set; return 0; }
int nvmlEventSetWait_v2(void *set, event_t *found, unsigned int timeout_ms) {
    struct timespec pause = {0, 10 * 1000 * 1000};
    (void)set;
    for (unsigned int waited_ms = 0; waited_ms <= timeout_ms; waited_ms += 10) {
        int card;
        unsigned long long code;
        if (event(xids_told, &card, &code)) {
            memset(found, 0, sizeof *found);
            xids_told++;
            found->device = &cards[card];
            found->type = EVENT_XID;
            found->data = code;
            return 0;
        }
        nanosleep(&pause, NULL);
    }
    return ERROR_TIMEOUT;
}
