/* Stand-in for libcuda.so.1 and libnvidia-ml.so.1, so that programs that use GPUs run on hosts without one.
 *
 * It has the functions of NVIDIA's libraries (cuda.h and nvml.h of CUDA 12) that HTCondor's tools and the drone call.
 * Answers come from files in the directory $FAKE_GPU_STATE (or "state" beside the library), which the test and its jobs
 * write (gpu.py has the methods):
 *
 *   driver           "version cuda": the driver's version, and the newest CUDA that it supports (13000 is 13.0)
 *   gpu.N            "percent mib": load and used memory of device N without its processes
 *   gpu.N.PROPERTY   a number: see the calls of property() below
 *   gpu.N.mig        "count mib": MIG is on, with so many instances of so much memory
 *   process.PID      "device percent mib [mps]": a process on a device: N, N:INSTANCE, or (the start of) a UUID
 *   fail.FUNCTION    the error code that this function returns, or "hang"
 *
 * $FAKE_GPUS (or the file "count") is the number of devices. A process with a CUDA context has a process.PID as well.
 * The file of a process that has ended does not count. Device memory is host memory; of a large allocation all parts
 * are the same 16 MiB.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

typedef unsigned long long u64;

enum { MAX_GPUS = 16, MAX_INSTANCES = 7, MAX_PROCESSES = 256 };
#define MIB (1ull << 20)

enum { NVML_INVALID_ARGUMENT = 2, NVML_NOT_SUPPORTED = 3, NVML_NOT_FOUND = 6, NVML_INSUFFICIENT_SIZE = 7 };
enum {
    CUDA_INVALID_VALUE = 1, CUDA_OUT_OF_MEMORY = 2, CUDA_NO_DEVICE = 100, CUDA_INVALID_DEVICE = 101,
    CUDA_INVALID_CONTEXT = 201, CUDA_INVALID_PTX = 218, CUDA_NOT_FOUND = 500, CUDA_ILLEGAL_ADDRESS = 700,
};

/* ---------------------------------------------------------------------------------------------------- state files */

static void state_path(char *path, const char *name)
{
    const char *directory = getenv("FAKE_GPU_STATE");
    Dl_info own = {0};
    if (directory) {
        snprintf(path, PATH_MAX, "%s/%s", directory, name);
        return;
    }
    dladdr((void *)(uintptr_t)state_path, &own);
    const char *library = own.dli_fname ? own.dli_fname : "", *end = strrchr(library, '/');
    snprintf(path, PATH_MAX, "%.*s/state/%s", (int)(end ? end - library : 0), library, name);
}

/* Read a state file as scanf does; return the number of values. */
static int read_state(const char *name, const char *format, ...)
{
    char path[PATH_MAX];
    state_path(path, name);
    FILE *file = fopen(path, "re");
    if (!file) return 0;
    va_list values;
    va_start(values, format);
    int read = vfscanf(file, format, values);
    va_end(values);
    fclose(file);
    return read < 0 ? 0 : read;
}

/* Return the error code that a test wants of a function, or 0; or do not return. */
static int injected(const char *function)
{
    char name[100], word[32];
    snprintf(name, sizeof name, "fail.%s", function);
    if (read_state(name, "%31s", word) != 1) return 0;
    while (!strcmp(word, "hang")) pause();
    return atoi(word);
}
#define ENTER do { int code_ = injected(__func__); if (code_) return code_; } while (0)

static int gpu_count(void)
{
    const char *count = getenv("FAKE_GPUS");
    int number = 2;
    if (count) number = atoi(count);
    else read_state("count", "%d", &number);
    return number > MAX_GPUS ? MAX_GPUS : number;
}

/* Return the newest CUDA that the driver supports, and the driver's version. */
static int driver_versions(char *driver)
{
    int cuda = 13000;
    char version[32] = "580.159.04";
    read_state("driver", "%31s %d", version, &cuda);
    if (driver) strcpy(driver, version);
    return cuda;
}

static u64 property(int gpu, const char *name, u64 otherwise)
{
    char file[64];
    u64 value;
    snprintf(file, sizeof file, "gpu.%d.%s", gpu, name);
    return read_state(file, "%lli", &value) == 1 ? value : otherwise;
}

/* Return the number of MIG instances of a device, and the memory of each; 0 with MIG off. */
static int instances(int gpu, u64 *mib)
{
    char file[64];
    unsigned count;
    u64 memory = 4864;
    snprintf(file, sizeof file, "gpu.%d.mig", gpu);
    if (read_state(file, "%u %llu", &count, &memory) < 1) return 0;
    if (mib) *mib = memory;
    return count > MAX_INSTANCES ? MAX_INSTANCES : (int)count;
}

/* Memory of a device, or of one of its instances. */
static u64 total_mib(int gpu, int instance)
{
    u64 mib = property(gpu, "memory_mib", 40536);
    if (instance >= 0) instances(gpu, &mib);
    return mib;
}

/* The UUID of a device (instance -1) or of one of its MIG instances. */
static void uuid_bytes(int gpu, int instance, unsigned char *bytes)
{
    for (int i = 0; i < 16; i++) bytes[i] = (unsigned char)(0xa0 + gpu * 16 + i);
    if (instance >= 0) bytes[3] = (unsigned char)instance;
}

static void uuid_text(int gpu, int instance, char *text, unsigned length)
{
    unsigned char b[16];
    uuid_bytes(gpu, instance, b);
    snprintf(text, length, "%s-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
             instance < 0 ? "GPU" : "MIG", b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11],
             b[12], b[13], b[14], b[15]);
}

/* Find a device by "N", "N:INSTANCE", or the start of a UUID. */
static int find_device(const char *word, int *gpu, int *instance)
{
    *instance = -1;
    if (sscanf(word, "%d:%d", gpu, instance) >= 1) return *gpu >= 0 && *gpu < gpu_count();
    size_t length = strcspn(word, ",");
    if (length < 8) return 0;
    for (*gpu = 0; *gpu < gpu_count(); ++*gpu)
        for (*instance = -1; *instance < instances(*gpu, NULL); ++*instance) {
            char text[64];
            uuid_text(*gpu, *instance, text, sizeof text);
            if (!strncmp(text, word, length)) return 1;
        }
    return 0;
}

/* ------------------------------------------------------------------------------------------------------ processes */

struct process {
    unsigned pid;
    int gpu, instance, mps;
    unsigned percent;
    u64 mib;
};

static int alive(int pid)
{
    char path[64], state = 'Z';
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *file = fopen(path, "re");
    if (!file) return 0;
    int read = fscanf(file, "%*d (%*[^)]) %c", &state);
    fclose(file);
    return read == 1 && state != 'Z' && state != 'X';
}

/* List the processes on a device, those of one instance or of all (-1). */
static int processes(int gpu, int instance, struct process *found)
{
    char path[PATH_MAX];
    state_path(path, ".");
    DIR *directory = opendir(path);
    int count = 0;
    for (struct dirent *entry; directory && count < MAX_PROCESSES && (entry = readdir(directory));) {
        struct process p = {0};
        char device[64], mps[8] = "";
        if (sscanf(entry->d_name, "process.%u", &p.pid) != 1 || !alive((int)p.pid)) continue;
        if (read_state(entry->d_name, "%63s %u %llu %7s", device, &p.percent, &p.mib, mps) < 3) continue;
        if (!find_device(device, &p.gpu, &p.instance) || p.gpu != gpu) continue;
        if (instance >= 0 && p.instance != instance) continue;
        p.mps = !strcmp(mps, "mps");
        found[count++] = p;
    }
    if (directory) closedir(directory);
    return count;
}

/* Load and used memory of a device, or of one of its instances. */
static void load(int gpu, int instance, unsigned *percent, u64 *mib)
{
    struct process found[MAX_PROCESSES];
    char file[32];
    *percent = 0, *mib = 0;
    snprintf(file, sizeof file, "gpu.%d", gpu);
    if (instance < 0) read_state(file, "%u %llu", percent, mib);
    for (int i = processes(gpu, instance, found); i-- > 0;) *percent += found[i].percent, *mib += found[i].mib;
    if (*percent > 100) *percent = 100;
    if (*mib > total_mib(gpu, instance)) *mib = total_mib(gpu, instance);
}

static u64 now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (u64)now.tv_sec * 1000000 + (u64)now.tv_nsec / 1000;
}

static unsigned power_mw(int gpu)
{
    unsigned percent;
    u64 mib;
    load(gpu, -1, &percent, &mib);
    return (unsigned)property(gpu, "power_mw", 50000 + 3500 * percent);
}

/* Return the energy of a device since somebody first asked, by the power at each question. */
static u64 energy_mj(int gpu)
{
    char path[PATH_MAX], name[32], text[64] = "";
    snprintf(name, sizeof name, "gpu.%d.energy", gpu);
    state_path(path, name);
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (file < 0) return 0;
    if (fchmod(file, 0666)) errno = 0; /* of another account, which has done it */
    flock(file, LOCK_EX);
    double energy = 0;
    u64 now = now_us(), then = now;
    if (pread(file, text, sizeof text - 1, 0) > 0) sscanf(text, "%llu %lf", &then, &energy);
    energy += (double)(now - then) / 1e6 * power_mw(gpu);
    int length = snprintf(text, sizeof text, "%llu %f\n", now, energy);
    if (pwrite(file, text, (size_t)length, 0) != length) energy = 0;
    close(file);
    return (u64)energy;
}

/* ----------------------------------------------------------------------------------------------------------- NVML */

typedef const struct handle { int gpu, instance; } *nvmlDevice_t;
static struct handle handles[MAX_GPUS][1 + MAX_INSTANCES];

static int handle(int gpu, int instance, nvmlDevice_t *device)
{
    if (gpu < 0 || gpu >= gpu_count()) return NVML_INVALID_ARGUMENT;
    handles[gpu][1 + instance] = (struct handle){gpu, instance};
    *device = &handles[gpu][1 + instance];
    return 0;
}
static int mig_is_on(nvmlDevice_t d) { return instances(d->gpu, NULL) > 0; }

int nvmlInit_v2(void) { ENTER; return 0; }
int nvmlInit(void) { return nvmlInit_v2(); }
int nvmlInitWithFlags(unsigned flags) { (void)flags; return nvmlInit_v2(); }
int nvmlShutdown(void) { ENTER; return 0; }
const char *nvmlErrorString(int code) { return code ? "error of the fake library" : "Success"; }

int nvmlSystemGetDriverVersion(char *text, unsigned length)
{
    ENTER;
    char driver[32];
    driver_versions(driver);
    snprintf(text, length, "%s", driver);
    return 0;
}
int nvmlSystemGetCudaDriverVersion_v2(int *version) { ENTER; *version = driver_versions(NULL); return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { ENTER; *count = (unsigned)gpu_count(); return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, nvmlDevice_t *device) { ENTER; return handle((int)i, -1, device); }
int nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    ENTER;
    int gpu, instance;
    if (strlen(uuid) != 40 || !find_device(uuid, &gpu, &instance)) return NVML_NOT_FOUND;
    return handle(gpu, instance, device);
}
int nvmlDeviceGetIndex(nvmlDevice_t d, unsigned *index) { ENTER; *index = (unsigned)d->gpu; return 0; }
int nvmlDeviceGetMinorNumber(nvmlDevice_t d, unsigned *minor) { ENTER; *minor = (unsigned)d->gpu; return 0; }
int nvmlDeviceGetUUID(nvmlDevice_t d, char *t, unsigned n) { ENTER; uuid_text(d->gpu, d->instance, t, n); return 0; }
int nvmlDeviceGetName(nvmlDevice_t d, char *text, unsigned length)
{
    ENTER;
    u64 mib = total_mib(d->gpu, d->instance);
    if (d->instance < 0) snprintf(text, length, "NVIDIA A100-SXM4-40GB");
    else snprintf(text, length, "NVIDIA A100-SXM4-40GB MIG %dg.%dgb", (int)(mib / 4864), (int)((mib + 1023) / 1024));
    return 0;
}
int nvmlDeviceGetCudaComputeCapability(nvmlDevice_t d, int *major, int *minor)
{
    ENTER;
    (void)d, *major = 8, *minor = 0;
    return 0;
}
int nvmlDeviceGetPciInfo_v3(nvmlDevice_t d, void *info)
{
    ENTER;
    struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } pci = {0};
    pci.bus = (unsigned)d->gpu + 1;
    snprintf(pci.legacy, sizeof pci.legacy, "0000:%02X:00.0", pci.bus);
    snprintf(pci.bus_id, sizeof pci.bus_id, "00000000:%02X:00.0", pci.bus);
    memcpy(info, &pci, sizeof pci);
    return 0;
}
int nvmlDeviceGetPciInfo(nvmlDevice_t d, void *info) { return nvmlDeviceGetPciInfo_v3(d, info); }

/* nvml.h has {total, free, used}; HTCondor's copy of it has the first two the other way round. */
int nvmlDeviceGetMemoryInfo(nvmlDevice_t d, u64 *memory)
{
    ENTER;
    unsigned percent;
    u64 used, total = total_mib(d->gpu, d->instance);
    load(d->gpu, d->instance, &percent, &used);
    memory[0] = total * MIB, memory[1] = (total - used) * MIB, memory[2] = used * MIB;
    return 0;
}
int nvmlDeviceGetUtilizationRates(nvmlDevice_t d, unsigned *rates)
{
    ENTER;
    u64 mib;
    if (mig_is_on(d)) return NVML_NOT_SUPPORTED;
    load(d->gpu, -1, &rates[0], &mib);
    rates[1] = rates[0] / 2;
    return 0;
}
int nvmlDeviceGetSamples(nvmlDevice_t d, int type, u64 last_seen, int *value_type, unsigned *count, void *samples)
{
    ENTER;
    struct { u64 time_us, value; } sample = {now_us(), 0};
    unsigned percent;
    u64 mib;
    if (type != 1 /* NVML_GPU_UTILIZATION_SAMPLES */ || mig_is_on(d)) return NVML_NOT_SUPPORTED;
    if (last_seen >= sample.time_us) return NVML_NOT_FOUND;
    *value_type = 1;
    if (!samples) { *count = 120; return 0; }
    load(d->gpu, -1, &percent, &mib);
    sample.value = percent;
    memcpy(samples, &sample, sizeof sample);
    *count = 1;
    return 0;
}

/* Copy what nvmlProcessInfo_t (v2 and v3) holds of the clients of MPS, or of all processes. */
static int running(nvmlDevice_t d, unsigned *room, void *infos, int mps)
{
    struct { unsigned pid; u64 bytes; unsigned instance, compute_instance; } *info = infos;
    struct process found[MAX_PROCESSES];
    int all = processes(d->gpu, d->instance, found);
    unsigned count = 0;
    for (int i = 0; i < all; i++) {
        if (mps && !found[i].mps) continue;
        if (count < *room && info) {
            info[count].pid = found[i].pid, info[count].bytes = found[i].mib * MIB;
            info[count].instance = found[i].instance < 0 ? UINT_MAX : (unsigned)found[i].instance + 1;
            info[count].compute_instance = found[i].instance < 0 ? UINT_MAX : 0;
        }
        count++;
    }
    int code = count > *room ? NVML_INSUFFICIENT_SIZE : 0;
    *room = count;
    return code;
}
#define LISTING(function, mps) \
    int function(nvmlDevice_t d, unsigned *room, void *infos) { ENTER; return running(d, room, infos, mps); }
LISTING(nvmlDeviceGetComputeRunningProcesses_v3, 0)
LISTING(nvmlDeviceGetComputeRunningProcesses_v2, 0)
LISTING(nvmlDeviceGetMPSComputeRunningProcesses_v3, 1)
LISTING(nvmlDeviceGetMPSComputeRunningProcesses_v2, 1)

/* Utilisation of each process that worked since `last_seen`, without clients of MPS: NVML charges them to their server. */
int nvmlDeviceGetProcessUtilization(nvmlDevice_t d, void *samples, unsigned *room, u64 last_seen)
{
    ENTER;
    struct { unsigned pid; u64 time_us; unsigned sm, memory, encoder, decoder; } *sample = samples;
    struct process found[MAX_PROCESSES];
    if (mig_is_on(d)) return NVML_NOT_SUPPORTED;
    unsigned count = 0, all = (unsigned)processes(d->gpu, -1, found), given = *room;
    for (unsigned i = 0; i < all; i++) if (!found[i].mps) found[count++] = found[i];
    u64 now = now_us();
    *room = count;
    if (!count || last_seen >= now) return NVML_NOT_FOUND;
    if (count > given || !sample) return NVML_INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < count; i++) {
        sample[i].pid = found[i].pid, sample[i].time_us = now;
        sample[i].sm = found[i].percent > 100 ? 100 : found[i].percent, sample[i].memory = sample[i].sm / 2;
        sample[i].encoder = sample[i].decoder = 0;
    }
    return 0;
}
int nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t d, u64 *mj) { ENTER; *mj = energy_mj(d->gpu); return 0; }
int nvmlDeviceGetPowerUsage(nvmlDevice_t d, unsigned *mw) { ENTER; *mw = power_mw(d->gpu); return 0; }
int nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t d, unsigned *mw) { ENTER; (void)d, *mw = 400000; return 0; }

/* A property of the device as an unsigned int. */
#define NUMBER(function, name, otherwise) \
    int function(nvmlDevice_t d, unsigned *n) { ENTER; *n = (unsigned)property(d->gpu, name, otherwise); return 0; }
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, "pcie_width", 16)
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, "pcie_width_max", 16)
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, "pcie_generation", 4)
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, "pcie_generation_max", 4)
NUMBER(nvmlDeviceGetNumGpuCores, "cores", 6912)
NUMBER(nvmlDeviceGetComputeMode, "compute_mode", 0)
int nvmlDeviceGetTemperature(nvmlDevice_t d, int sensor, unsigned *celsius)
{
    ENTER;
    (void)sensor, *celsius = (unsigned)property(d->gpu, "temperature", 45);
    return 0;
}
int nvmlDeviceGetFanSpeed(nvmlDevice_t d, unsigned *n) { ENTER; (void)d, *n = 0; return NVML_NOT_SUPPORTED; }
static int clock_mhz(nvmlDevice_t d, unsigned *mhz) { *mhz = (unsigned)property(d->gpu, "clock_mhz", 1410); return 0; }
int nvmlDeviceGetMaxClockInfo(nvmlDevice_t d, int t, unsigned *mhz) { ENTER; (void)t; return clock_mhz(d, mhz); }
int nvmlDeviceGetClockInfo(nvmlDevice_t d, int t, unsigned *mhz) { ENTER; (void)t; return clock_mhz(d, mhz); }
int nvmlDeviceGetEccMode(nvmlDevice_t d, int *now, int *next) { ENTER; (void)d, *now = *next = 1; return 0; }
int nvmlDeviceGetTotalEccErrors(nvmlDevice_t d, int uncorrected, int aggregate, u64 *count)
{
    ENTER;
    *count = property(d->gpu, uncorrected ? "ecc_uncorrected" : "ecc_corrected", 0);
    if (aggregate) *count = property(d->gpu, uncorrected ? "ecc_uncorrected_ever" : "ecc_corrected_ever", *count);
    return 0;
}
int nvmlDeviceGetRemappedRows(nvmlDevice_t d, unsigned *corrected, unsigned *uncorrected, unsigned *pending,
                              unsigned *failed)
{
    ENTER;
    *corrected = (unsigned)property(d->gpu, "remapped_corrected", 0);
    *uncorrected = (unsigned)property(d->gpu, "remapped_uncorrected", 0);
    *pending = (unsigned)property(d->gpu, "remap_pending", 0);
    *failed = (unsigned)property(d->gpu, "remap_failed", 0);
    return 0;
}
static int throttled(nvmlDevice_t d, u64 *reasons) { *reasons = property(d->gpu, "throttle", 0); return 0; }
int nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t d, u64 *reasons) { ENTER; return throttled(d, reasons); }
int nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t d, u64 *reasons) { ENTER; return throttled(d, reasons); }

/* MIG: an instance is GPU instance 1..7 with compute instance 0. */
int nvmlDeviceGetMigMode(nvmlDevice_t d, int *now, int *next) { ENTER; *now = *next = mig_is_on(d); return 0; }
int nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t d, unsigned *n)
{
    ENTER;
    *n = mig_is_on(d) ? MAX_INSTANCES : 0;
    return 0;
}
int nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t d, unsigned index, nvmlDevice_t *device)
{
    ENTER;
    return (int)index < instances(d->gpu, NULL) ? handle(d->gpu, (int)index, device) : NVML_NOT_FOUND;
}
int nvmlDeviceIsMigDeviceHandle(nvmlDevice_t d, unsigned *is) { ENTER; *is = d->instance >= 0; return 0; }
int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t d, nvmlDevice_t *gpu)
{
    ENTER;
    return handle(d->gpu, -1, gpu);
}
int nvmlDeviceGetGpuInstanceId(nvmlDevice_t d, unsigned *id)
{
    ENTER;
    *id = (unsigned)d->instance + 1;
    return d->instance < 0 ? NVML_NOT_SUPPORTED : 0;
}
int nvmlDeviceGetComputeInstanceId(nvmlDevice_t d, unsigned *id)
{
    ENTER;
    *id = 0;
    return d->instance < 0 ? NVML_NOT_SUPPORTED : 0;
}
int nvmlDeviceGetAttributes_v2(nvmlDevice_t d, void *attributes)
{
    ENTER;
    if (d->instance < 0) return NVML_NOT_SUPPORTED;
    u64 mib = total_mib(d->gpu, d->instance);
    unsigned slices = (unsigned)(mib / 4864);
    struct { unsigned multiprocessors, engines[5], slices, compute_slices; u64 mib; } found = {0};
    found.multiprocessors = 14 * slices, found.slices = found.compute_slices = slices, found.mib = mib;
    memcpy(attributes, &found, sizeof found);
    return 0;
}
int nvmlDeviceGetAttributes(nvmlDevice_t d, void *attributes) { return nvmlDeviceGetAttributes_v2(d, attributes); }

/* ----------------------------------------------------------------------------------------------------------- CUDA */

/* Find the device of an ordinal, as CUDA_VISIBLE_DEVICES numbers them; its first wrong word ends the list. */
static int visible(int ordinal, int *gpu, int *instance)
{
    const char *words = getenv("CUDA_VISIBLE_DEVICES");
    *gpu = ordinal, *instance = -1;
    if (!words) return ordinal >= 0 && ordinal < gpu_count();
    for (int i = 0; *words; i++) {
        if (!find_device(words, gpu, instance)) return 0;
        if (i == ordinal) return 1;
        words += strcspn(words, ",");
        words += *words == ',';
    }
    return 0;
}
#define DEVICE(ordinal) \
    int gpu, instance; \
    if (!visible(ordinal, &gpu, &instance)) return CUDA_INVALID_DEVICE

int cuInit(unsigned flags) { ENTER; (void)flags; int g, i; return visible(0, &g, &i) ? 0 : CUDA_NO_DEVICE; }
int cuDriverGetVersion(int *version) { ENTER; *version = driver_versions(NULL); return 0; }
int cuDeviceGetCount(int *count) { ENTER; int g, i; for (*count = 0; visible(*count, &g, &i);) ++*count; return 0; }
int cuDeviceGet(int *device, int ordinal) { ENTER; DEVICE(ordinal); *device = ordinal; return 0; }
int cuDeviceGetName(char *text, int n, int device)
{
    ENTER;
    DEVICE(device);
    struct handle h = {gpu, instance};
    return nvmlDeviceGetName(&h, text, (unsigned)n);
}
int cuDeviceGetUuid(unsigned char *uuid, int device)
{
    ENTER;
    DEVICE(device);
    uuid_bytes(gpu, instance, uuid);
    return 0;
}
int cuDeviceGetUuid_v2(unsigned char *uuid, int device) { return cuDeviceGetUuid(uuid, device); }
int cuDeviceGetPCIBusId(char *text, int n, int device)
{
    ENTER;
    DEVICE(device);
    snprintf(text, (size_t)n, "0000:%02X:00.0", gpu + 1);
    return 0;
}
int cuDeviceComputeCapability(int *major, int *minor, int d) { ENTER; DEVICE(d); *major = 8, *minor = 0; return 0; }
int cuDeviceTotalMem_v2(size_t *bytes, int device)
{
    ENTER;
    DEVICE(device);
    *bytes = total_mib(gpu, instance) * MIB;
    return 0;
}
int cuDeviceGetAttribute(int *value, int attribute, int device)
{
    ENTER;
    DEVICE(device);
    switch (attribute) {
    case 13: *value = 1410000; break;                        /* CLOCK_RATE, kHz */
    case 16: *value = instance < 0 ? 108 : 14; break;        /* MULTIPROCESSOR_COUNT */
    case 32: *value = 1; break;                              /* ECC_ENABLED */
    case 75: *value = 8; break;                              /* COMPUTE_CAPABILITY_MAJOR */
    default: *value = 0;
    }
    return 0;
}

/* One context per process is enough here. */
static struct { int open, gpu, instance, ordinal, error; u64 bytes; } context;
#define CONTEXT \
    ENTER; \
    if (!context.open) return CUDA_INVALID_CONTEXT; \
    if (context.error) return context.error

/* Return whether there is a control daemon of MPS where this process looks for one. */
static int is_mps_client(void)
{
    const char *directory = getenv("CUDA_MPS_PIPE_DIRECTORY");
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/control", directory ? directory : "/tmp/nvidia-mps");
    return !access(path, F_OK);
}

/* Tell NVML of this process: half of the device while it has a context, and its memory. */
static void publish(void)
{
    char name[32], path[PATH_MAX], device[16];
    snprintf(name, sizeof name, "process.%d", getpid());
    state_path(path, name);
    if (!context.open) { unlink(path); return; }
    FILE *file = fopen(path, "we");
    if (!file) return;
    snprintf(device, sizeof device, context.instance < 0 ? "%d" : "%d:%d", context.gpu, context.instance);
    fprintf(file, "%s 50 %llu %s\n", device, context.bytes / MIB, is_mps_client() ? "mps" : "");
    fclose(file);
}
int cuCtxCreate_v2(void **made, unsigned flags, int device)
{
    ENTER;
    DEVICE(device);
    (void)flags;
    while (property(gpu, "hang", 0)) pause();
    context.open = 1, context.gpu = gpu, context.instance = instance, context.ordinal = device;
    *made = &context;
    publish();
    return 0;
}
int cuCtxDestroy_v2(void *c)
{
    ENTER;
    (void)c, context.open = context.error = 0, context.bytes = 0;
    publish();
    return 0;
}
int cuCtxSynchronize(void) { CONTEXT; return 0; }
int cuCtxSetCurrent(void *c) { ENTER; (void)c; return 0; }

/* Return the limit of device memory that the control daemon has (the file "limit" of the stand-in: "8G"). */
static u64 daemon_limit(void)
{
    const char *directory = getenv("CUDA_MPS_PIPE_DIRECTORY");
    char path[PATH_MAX], unit = 'M';
    u64 value = 0;
    snprintf(path, sizeof path, "%s/limit", directory ? directory : "/tmp/nvidia-mps");
    FILE *file = fopen(path, "re");
    if (!file) return ULLONG_MAX;
    int read = fscanf(file, "%llu%c", &value, &unit);
    fclose(file);
    return read < 1 ? ULLONG_MAX : value * (unit == 'G' ? 1024 : 1) * MIB;
}

/* Return this process's limit of device memory under MPS: CUDA_MPS_PINNED_DEVICE_MEM_LIMIT is "0=8G,1=512M". A process
 * can only lower that of the daemon. */
static u64 mps_limit(void)
{
    const char *text = getenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT");
    u64 most = daemon_limit();
    for (; text && *text; text = strchr(text, ',') ? strchr(text, ',') + 1 : "") {
        int ordinal;
        u64 value;
        char unit = 'M';
        if (sscanf(text, "%d=%llu%c", &ordinal, &value, &unit) < 2 || ordinal != context.ordinal) continue;
        value *= (unit == 'G' ? 1024 : 1) * MIB;
        return value < most ? value : most;
    }
    return most;
}

#define PART (16 * MIB)
static struct allocation { char *start; size_t bytes, mapped; struct allocation *next; } *allocations;

/* Map memory; beyond 64 MiB every part of it is the same PART, because a test host has less memory than a GPU. */
static char *map_memory(size_t bytes)
{
    size_t mapped = (bytes + PART - 1) / PART * PART;
    char *start = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED || bytes <= 64 * MIB) return start == MAP_FAILED ? NULL : start;
    int part = memfd_create("fake-gpu", MFD_CLOEXEC);
    if (part < 0 || ftruncate(part, PART)) return NULL;
    for (size_t at = 0; at < mapped; at += PART)
        if (mmap(start + at, PART, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, part, 0) == MAP_FAILED) return NULL;
    close(part);
    return start;
}
static struct allocation *allocation_at(u64 address)
{
    struct allocation *each = allocations;
    while (each && !(address >= (u64)each->start && address < (u64)each->start + each->bytes)) each = each->next;
    return each;
}
int cuMemGetInfo_v2(size_t *available, size_t *total)
{
    CONTEXT;
    unsigned percent;
    u64 used, all = total_mib(context.gpu, context.instance);
    load(context.gpu, context.instance, &percent, &used);
    *available = (all - used) * MIB, *total = all * MIB;
    return 0;
}
int cuMemAlloc_v2(u64 *address, size_t bytes)
{
    size_t available, total;
    CONTEXT;
    if (cuMemGetInfo_v2(&available, &total) || bytes > available) return CUDA_OUT_OF_MEMORY;
    if (context.bytes + bytes > mps_limit()) return CUDA_OUT_OF_MEMORY;
    struct allocation *made = malloc(sizeof *made);
    if (!made || !(made->start = map_memory(bytes))) return CUDA_OUT_OF_MEMORY;
    made->bytes = bytes, made->mapped = (bytes + PART - 1) / PART * PART, made->next = allocations, allocations = made;
    context.bytes += bytes;
    publish();
    *address = (u64)made->start;
    return 0;
}
int cuMemFree_v2(u64 address)
{
    CONTEXT;
    for (struct allocation **each = &allocations; *each; each = &(*each)->next) {
        struct allocation *found = *each;
        if ((u64)found->start != address) continue;
        *each = found->next;
        context.bytes -= found->bytes;
        munmap(found->start, found->mapped);
        free(found);
        publish();
        return 0;
    }
    return CUDA_INVALID_VALUE;
}
int cuMemsetD32_v2(u64 address, unsigned value, size_t count)
{
    CONTEXT;
    struct allocation *memory = allocation_at(address);
    if (!memory || address + count * 4 > (u64)memory->start + memory->bytes) return CUDA_INVALID_VALUE;
    if (memory->bytes > 64 * MIB && count > PART / 4) count = PART / 4; /* that reaches all of it */
    for (size_t i = 0; i < count; i++) ((unsigned *)(uintptr_t)address)[i] = value;
    return 0;
}
int cuMemsetD32(u64 address, unsigned value, size_t count) { return cuMemsetD32_v2(address, value, count); }
int cuMemcpyHtoD_v2(u64 to, const void *from, size_t bytes)
{
    CONTEXT;
    if (!allocation_at(to)) return CUDA_INVALID_VALUE;
    memcpy((void *)(uintptr_t)to, from, bytes);
    return 0;
}
/* With the property "corrupt", the first bit that is read is wrong. */
int cuMemcpyDtoH_v2(void *to, u64 from, size_t bytes)
{
    CONTEXT;
    if (!allocation_at(from)) return CUDA_INVALID_VALUE;
    memcpy(to, (void *)(uintptr_t)from, bytes);
    if (property(context.gpu, "corrupt", 0)) *(char *)to ^= 1;
    return 0;
}

/* Kernels by name: what the PTX of a program under test would do. One that is not listed does nothing. */
static unsigned argument(void **arguments, int n) { return *(unsigned *)arguments[n]; }
static unsigned *pointer(void **arguments, int n) { return (unsigned *)(uintptr_t)*(u64 *)arguments[n]; }

/* increment(data, n): add 1 to each. */
static int increment(void **arguments)
{
    for (unsigned i = 0; i < argument(arguments, 1); i++) pointer(arguments, 0)[i]++;
    return 0;
}
/* train(data, rounds, n): a linear congruential generator on each of n numbers; a round takes a nanosecond here. */
static int train(void **arguments)
{
    unsigned *data = pointer(arguments, 0), rounds = argument(arguments, 1), n = argument(arguments, 2);
    unsigned factor = 1, sum = 0, f = 1664525, s = 1013904223; /* x -> f x + s, 2^i times */
    usleep(rounds / 1000);
    for (; rounds; rounds >>= 1, s = s * f + s, f *= f)
        if (rounds & 1) sum = sum * f + s, factor *= f;
    for (unsigned i = 0; i < n; i++) data[i] = data[i] * factor + sum;
    return 0;
}
/* fault(): an address that is nobody's. The error is found by the next call. */
static int fault(void **arguments)
{
    (void)arguments;
    context.error = CUDA_ILLEGAL_ADDRESS;
    return 0;
}
/* fill(words, count, total): words[i] = i. sum(words, count, total): add all words to total. All parts of a large
 * allocation are the same, so that the first kernel only takes down what the second has to find. */
static u64 filled_at, filled_count;
static int fill(void **arguments)
{
    filled_at = *(u64 *)arguments[0], filled_count = *(u64 *)arguments[1];
    struct allocation *memory = allocation_at(filled_at);
    if (!memory || filled_count * 8 > memory->bytes) context.error = CUDA_ILLEGAL_ADDRESS;
    return 0;
}
static int sum(void **arguments)
{
    u64 at = *(u64 *)arguments[0], count = *(u64 *)arguments[1], *total = (u64 *)(uintptr_t)*(u64 *)arguments[2];
    if (at == filled_at && count == filled_count) *total += count % 2 ? (count - 1) / 2 * count : count / 2 * (count - 1);
    return 0;
}
static const struct kernel { const char *name; int (*run)(void **); } kernels[] = {
    {"increment", increment}, {"train", train}, {"fault", fault}, {"fill", fill}, {"sum", sum},
    {"", NULL},
};

int cuModuleLoadDataEx(void **module, const void *image, unsigned n, void *options, void *values)
{
    CONTEXT;
    (void)n, (void)options, (void)values;
    if (!strstr(image, ".version") || !strstr(image, ".entry")) return CUDA_INVALID_PTX;
    *module = strdup(image);
    return 0;
}
int cuModuleLoadData(void **module, const void *image) { return cuModuleLoadDataEx(module, image, 0, NULL, NULL); }
int cuModuleUnload(void *module) { CONTEXT; free(module); return 0; }
int cuModuleGetFunction(const struct kernel **function, void *module, const char *name)
{
    CONTEXT;
    char entry[100];
    snprintf(entry, sizeof entry, ".entry %s", name);
    if (!strstr(module, entry)) return CUDA_NOT_FOUND;
    for (*function = kernels; (*function)->run && strcmp((*function)->name, name);) ++*function;
    return 0;
}
int cuLaunchKernel(const struct kernel *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                   unsigned bz, unsigned shared, void *stream, void **arguments, void **extra)
{
    CONTEXT;
    (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)shared, (void)stream, (void)extra;
    return function->run ? function->run(arguments) : 0;
}

static const char *error_name(int code)
{
    switch (code) {
    case 0: return "CUDA_SUCCESS";
    case CUDA_OUT_OF_MEMORY: return "CUDA_ERROR_OUT_OF_MEMORY";
    case CUDA_NO_DEVICE: return "CUDA_ERROR_NO_DEVICE";
    case CUDA_ILLEGAL_ADDRESS: return "CUDA_ERROR_ILLEGAL_ADDRESS";
    default: return "CUDA_ERROR_UNKNOWN";
    }
}
int cuGetErrorName(int code, const char **text) { *text = error_name(code); return 0; }
int cuGetErrorString(int code, const char **text) { *text = error_name(code); return 0; }
