package lifecycle

import (
	"errors"
	"math/big"
	"regexp"
	"strconv"
	"strings"
)

// ResourceLimits is what a sandbox may use at most, as the client wrote it: "500m", "1Gi". A key
// that is absent sets no limit.
type ResourceLimits map[string]string

// Limits are resource limits in numbers; zero means no limit.
type Limits struct {
	NanoCPUs    int64 // billionths of a core
	MemoryBytes int64
	GPUs        int // [AllGPUs] means every one of the machine
}

// minSharedMemory is what container engines give, in bytes.
const minSharedMemory = 64 << 20

// SharedMemoryBytes returns the size of the sandbox's /dev/shm, whose files count as its memory:
// half of the limit of memory, as Linux has it on a machine, and at least 64 MiB. It returns 0, the
// engine's default, without a limit.
func (l Limits) SharedMemoryBytes() int64 {
	if l.MemoryBytes == 0 {
		return 0
	}
	return max(l.MemoryBytes/2, minSharedMemory)
}

// AllGPUs is the number of GPUs of a sandbox that has every one of its machine.
const AllGPUs = -1

const (
	minNanoCPUs = 10_000_000       // 10m, the least that the kernel's scheduler takes
	minMemory   = 16 * 1024 * 1024 // a sandbox's own daemon needs about that much
	maxBareCPU  = 100              // from here on a bare number is a forgotten "m"
	maxQuantity = 32               // bytes; exact arithmetic on a number of a million digits would take seconds
)

var (
	cpuFormat    = regexp.MustCompile(`^([0-9]+(?:\.[0-9]+)?)(m?)$`)
	memoryFormat = regexp.MustCompile(`^([0-9]+(?:\.[0-9]+)?)([KMGT]i|[kMGT])$`)
	memoryUnits  = map[string]int64{
		"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12,
		"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40,
	}
)

func (r ResourceLimits) validate() error {
	_, err := r.Parse()
	return err
}

// Parse returns the limits in numbers, or an Error of KindInvalid that names the key and the
// format.
func (r ResourceLimits) Parse() (Limits, error) {
	var limits Limits
	for _, key := range sortedKeys(r) {
		var err error
		switch key {
		case "cpu":
			limits.NanoCPUs, err = parseCPU(r[key])
		case "memory":
			limits.MemoryBytes, err = parseMemory(r[key])
		case "gpu":
			limits.GPUs, err = parseGPU(r[key])
		default:
			err = Invalidf("resourceLimits: unknown key %.128q; the keys are cpu, memory and gpu", key)
		}
		if err != nil {
			return Limits{}, err
		}
	}
	return limits, nil
}

// checkRequests returns an Error of KindInvalid unless as much can be reserved for a sandbox with
// the limits.
func checkRequests(requests, limits ResourceLimits) error {
	reserved, err := requests.Parse()
	if err != nil {
		var invalid *Error
		if errors.As(err, &invalid) {
			return Invalidf("%s", strings.Replace(invalid.Message, "resourceLimits", "resourceRequests", 1))
		}
		return err
	}
	most, err := limits.Parse()
	switch {
	case err != nil:
		return err
	case reserved.GPUs != 0:
		return Invalidf("resourceRequests.gpu: GPUs are reserved as resourceLimits has them; leave the key out")
	case most.NanoCPUs > 0 && reserved.NanoCPUs > most.NanoCPUs:
		return Invalidf("resourceRequests.cpu: must be at most resourceLimits.cpu, %s, got %s", limits["cpu"], requests["cpu"])
	case most.MemoryBytes > 0 && reserved.MemoryBytes > most.MemoryBytes:
		return Invalidf("resourceRequests.memory: must be at most resourceLimits.memory, %s, got %s", limits["memory"], requests["memory"])
	}
	return nil
}

func parseCPU(text string) (int64, error) {
	match := findQuantity(cpuFormat, text)
	if match == nil {
		return 0, Invalidf("resourceLimits.cpu: %.128q is not a quantity of cores; write 500m, 0.5 or 1", text)
	}
	value, _ := new(big.Rat).SetString(match[1])
	if match[2] == "" {
		if value.Cmp(big.NewRat(maxBareCPU, 1)) >= 0 {
			return 0, Invalidf("resourceLimits.cpu: %q would be %s cores; a number of millicores takes the suffix m: write %sm", text, text, text)
		}
		value.Mul(value, big.NewRat(1000, 1))
	}
	nano, ok := toInt64(value.Mul(value, big.NewRat(1_000_000, 1)))
	if !ok {
		return 0, Invalidf("resourceLimits.cpu: %q is too large", text)
	}
	if nano < minNanoCPUs {
		return 0, Invalidf("resourceLimits.cpu: %q must be at least 10m", text)
	}
	return nano, nil
}

func parseMemory(text string) (int64, error) {
	match := findQuantity(memoryFormat, text)
	if match == nil {
		return 0, Invalidf("resourceLimits.memory: %.128q is not a quantity with a unit; write 512Mi or 1Gi", text)
	}
	value, _ := new(big.Rat).SetString(match[1])
	bytes, ok := toInt64(value.Mul(value, new(big.Rat).SetInt64(memoryUnits[match[2]])))
	if !ok {
		return 0, Invalidf("resourceLimits.memory: %q is too large", text)
	}
	if bytes < minMemory {
		return 0, Invalidf("resourceLimits.memory: %q must be at least 16Mi", text)
	}
	return bytes, nil
}

func parseGPU(text string) (int, error) {
	if text == "all" {
		return AllGPUs, nil
	}
	count, err := strconv.Atoi(text)
	if err != nil || count < 1 || strings.HasPrefix(text, "+") {
		return 0, Invalidf("resourceLimits.gpu: %.128q is not a count; write 1, or all on one machine", text)
	}
	return count, nil
}

func findQuantity(format *regexp.Regexp, text string) []string {
	if len(text) > maxQuantity {
		return nil
	}
	return format.FindStringSubmatch(text)
}

// toInt64 drops what is behind the point.
func toInt64(r *big.Rat) (int64, bool) {
	quotient := new(big.Int).Quo(r.Num(), r.Denom())
	return quotient.Int64(), quotient.IsInt64()
}
