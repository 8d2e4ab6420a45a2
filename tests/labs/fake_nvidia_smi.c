/* Stand-in for nvidia-smi: `-L`, `--query-gpu=FIELDS --format=csv[,noheader][,nounits] [-i IDS]`, and without these the
 * head and the amounts of memory of NVIDIA's table, by fake_gpu.c. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef unsigned long long u64;
typedef const struct handle *device;

int nvmlInit_v2(void);
int nvmlSystemGetDriverVersion(char *, unsigned);
int nvmlSystemGetCudaDriverVersion_v2(int *);
int nvmlDeviceGetCount_v2(unsigned *);
int nvmlDeviceGetHandleByIndex_v2(unsigned, device *);
int nvmlDeviceGetMigDeviceHandleByIndex(device, unsigned, device *);
int nvmlDeviceGetUUID(device, char *, unsigned);
int nvmlDeviceGetName(device, char *, unsigned);
int nvmlDeviceGetMemoryInfo(device, u64 *);
int nvmlDeviceGetUtilizationRates(device, unsigned *);
int nvmlDeviceGetTotalEccErrors(device, int, int, u64 *);
int nvmlDeviceGetRemappedRows(device, unsigned *, unsigned *, unsigned *, unsigned *);
int nvmlDeviceGetCurrentClocksEventReasons(device, u64 *);
int nvmlDeviceGetCurrPcieLinkWidth(device, unsigned *);
int nvmlDeviceGetMaxPcieLinkWidth(device, unsigned *);
int nvmlDeviceGetCurrPcieLinkGeneration(device, unsigned *);
int nvmlDeviceGetMaxPcieLinkGeneration(device, unsigned *);
int nvmlDeviceGetMigMode(device, unsigned *, unsigned *);
int nvmlDeviceGetTemperature(device, int, unsigned *);
int nvmlDeviceGetPowerUsage(device, unsigned *);
int nvmlDeviceGetComputeMode(device, unsigned *);

static int failed(void)
{
    puts("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest "
         "NVIDIA driver is installed and running.");
    return 9;
}

/* Print a number with its unit, or what nvidia-smi prints where there is none. */
static void number(int code, u64 value, const char *unit, int units)
{
    if (code) printf("[N/A]");
    else printf(units && *unit ? "%llu %s" : "%llu", value, unit);
}

/* Print one field of one device; return 0 for an unknown field. */
static int field(const char *name, unsigned index, device gpu, int units)
{
    char text[96] = "";
    unsigned value = 0, row[4] = {0};
    u64 memory[3] = {0}, many = 0;
    int code = 0;
#define IS(word) (!strcmp(name, word))
    if (IS("index")) return printf("%u", index);
    if (IS("count")) { nvmlDeviceGetCount_v2(&value); return printf("%u", value); }
    if (IS("uuid") || IS("gpu_uuid")) { nvmlDeviceGetUUID(gpu, text, sizeof text); return printf("%s", text); }
    if (IS("name") || IS("gpu_name")) { nvmlDeviceGetName(gpu, text, sizeof text); return printf("%s", text); }
    if (IS("driver_version")) { nvmlSystemGetDriverVersion(text, sizeof text); return printf("%s", text); }
    if (IS("compute_cap")) return printf("8.0");
    if (IS("compute_mode")) {
        nvmlDeviceGetComputeMode(gpu, &value);
        return printf(value == 3 ? "Exclusive_Process" : "Default");
    }
    if (IS("mig.mode.current")) {
        nvmlDeviceGetMigMode(gpu, &value, row);
        return printf(value ? "Enabled" : "Disabled");
    }
    if (IS("clocks_event_reasons.active") || IS("clocks_throttle_reasons.active")) {
        nvmlDeviceGetCurrentClocksEventReasons(gpu, &many);
        return printf("0x%016llx", many);
    }
    if (!strncmp(name, "memory.", 7)) {
        code = nvmlDeviceGetMemoryInfo(gpu, memory);
        u64 bytes = IS("memory.total") ? memory[0] : IS("memory.free") ? memory[1] : memory[2];
        return number(code, bytes >> 20, "MiB", units), 1;
    }
    if (!strncmp(name, "ecc.errors.", 11)) {
        code = nvmlDeviceGetTotalEccErrors(gpu, !!strstr(name, ".uncorrected"), !!strstr(name, ".aggregate"), &many);
        return number(code, many, "", units), 1;
    }
    if (!strncmp(name, "remapped_rows.", 14)) {
        code = nvmlDeviceGetRemappedRows(gpu, &row[0], &row[1], &row[2], &row[3]);
        const char *kinds[] = {"correctable", "uncorrectable", "pending", "failure"};
        for (int i = 0; i < 4; i++)
            if (!strcmp(name + 14, kinds[i])) return number(code, row[i], "", units), 1;
        return 0;
    }
    if (IS("utilization.gpu")) {
        code = nvmlDeviceGetUtilizationRates(gpu, row);
        return number(code, row[0], "%", units), 1;
    }
    if (IS("power.draw")) {
        nvmlDeviceGetPowerUsage(gpu, &value);
        return printf(units ? "%.2f W" : "%.2f", value / 1000.0);
    }
    if (IS("temperature.gpu")) code = nvmlDeviceGetTemperature(gpu, 0, &value);
    else if (IS("pcie.link.width.current")) code = nvmlDeviceGetCurrPcieLinkWidth(gpu, &value);
    else if (IS("pcie.link.width.max")) code = nvmlDeviceGetMaxPcieLinkWidth(gpu, &value);
    else if (IS("pcie.link.gen.current")) code = nvmlDeviceGetCurrPcieLinkGeneration(gpu, &value);
    else if (IS("pcie.link.gen.max")) code = nvmlDeviceGetMaxPcieLinkGeneration(gpu, &value);
    else return 0;
    return number(code, value, "", units), 1;
}

static int query(char *fields, unsigned index, int units)
{
    device gpu;
    if (nvmlDeviceGetHandleByIndex_v2(index, &gpu)) return failed();
    const char *between = "";
    char *rest = strdup(fields);
    for (char *name; (name = strsep(&rest, ",")); between = ", ") {
        fputs(between, stdout);
        if (!field(name, index, gpu, units)) return printf("Field \"%s\" is not a valid field to query.\n", name), 2;
    }
    puts("");
    return 0;
}

static int list(unsigned count)
{
    char uuid[96], name[96], *profile;
    for (unsigned i = 0; i < count; i++) {
        device gpu, slice;
        if (nvmlDeviceGetHandleByIndex_v2(i, &gpu)) return failed();
        nvmlDeviceGetName(gpu, name, sizeof name), nvmlDeviceGetUUID(gpu, uuid, sizeof uuid);
        printf("GPU %u: %s (UUID: %s)\n", i, name, uuid);
        for (unsigned n = 0; !nvmlDeviceGetMigDeviceHandleByIndex(gpu, n, &slice); n++) {
            nvmlDeviceGetName(slice, name, sizeof name), nvmlDeviceGetUUID(slice, uuid, sizeof uuid);
            profile = strstr(name, "MIG");
            printf("  %-15s Device %2u: (UUID: %s)\n", profile ? profile : name, n, uuid);
        }
    }
    return 0;
}

/* Return true if a list of indices and UUIDs, with commas between, has a device. */
static int named(const char *list, unsigned index)
{
    char words[1024] = "", uuid[96] = "", number[16], *word, *rest = words;
    device gpu;
    if (!list) return 1;
    snprintf(words, sizeof words, "%s", list);
    snprintf(number, sizeof number, "%u", index);
    if (!nvmlDeviceGetHandleByIndex_v2(index, &gpu)) nvmlDeviceGetUUID(gpu, uuid, sizeof uuid);
    while ((word = strsep(&rest, ",")))
        if (!strcmp(word, number) || !strcmp(word, uuid)) return 1;
    return 0;
}

static int table(const char *only, unsigned count)
{
    char driver[32], name[96];
    int cuda = 0;
    u64 memory[3] = {0};
    device gpu;
    if (nvmlSystemGetDriverVersion(driver, sizeof driver) || nvmlSystemGetCudaDriverVersion_v2(&cuda)) return failed();
    printf("| NVIDIA-SMI %-22s Driver Version: %-14s CUDA Version: %d.%-8d |\n", driver, driver, cuda / 1000, cuda % 1000 / 10);
    for (unsigned i = 0; i < count; i++) {
        if (!named(only, i)) continue;
        if (nvmlDeviceGetHandleByIndex_v2(i, &gpu)) return failed();
        nvmlDeviceGetName(gpu, name, sizeof name), nvmlDeviceGetMemoryInfo(gpu, memory);
        printf("| %3u  %-80s |\n| %55lluMiB / %6lluMiB |\n", i, name, memory[2] >> 20, memory[0] >> 20);
    }
    return 0;
}

int main(int argc, char **argv)
{
    char *fields = NULL, *format = "", *only = NULL;
    unsigned count = 0;
    int listing = 0;
    for (int i = 1; i < argc; i++) {
        if (!strncmp(argv[i], "--query-gpu=", 12)) fields = argv[i] + 12;
        else if (!strncmp(argv[i], "--format=", 9)) format = argv[i] + 9;
        else if (!strcmp(argv[i], "-L")) listing = 1;
        else if (!strcmp(argv[i], "-i") && i + 1 < argc) only = argv[++i];
        else if (!strncmp(argv[i], "--id=", 5)) only = argv[i] + 5;
        else return printf("Option %s is not recognized by the fake nvidia-smi.\n", argv[i]), 2;
    }
    if (nvmlInit_v2() || nvmlDeviceGetCount_v2(&count)) return failed();
    if (listing) return list(count);
    if (!fields) return table(only, count);
    if (!strstr(format, "noheader")) puts(fields);
    for (unsigned i = 0; i < count; i++) {
        int code = !named(only, i) ? 0 : query(fields, i, !strstr(format, "nounits"));
        if (code) return code;
    }
    return 0;
}
