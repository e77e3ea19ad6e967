// Package limits has containers find their own limits where programs look for the size of the
// machine. It chooses the processors that a container runs on, and makes the files of the kernel
// that show a machine as large as the container's limits.
package limits

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"sandbox.internal/runtime/engine"
)

// Targets of the files. /proc/stat is not among them: its counters would stand still. Nor are the
// lists of processors that may be plugged in: programs have a place for each of these, which they
// find by the number of the processor that they run on.
const (
	CPUInfo = "/proc/cpuinfo"
	MemInfo = "/proc/meminfo"
	Online  = "/sys/devices/system/cpu/online"
)

// File is a made file, which belongs at Target in a container.
type File struct {
	Target string
	// Name is the file's among those of all targets, sizes and machines: files of the same name
	// show the same.
	Name    string
	Content []byte
}

func newFile(target string, size int64, content []byte) File {
	sum := sha256.New()
	for line := range bytes.Lines(content) {
		if !bytes.HasPrefix(line, []byte("cpu MHz")) { // which is another one each time
			_, _ = sum.Write(line)
		}
	}
	name := fmt.Sprintf("%s-%d-%s", path.Base(target), size, hex.EncodeToString(sum.Sum(nil)[:8]))
	return File{target, name, content}
}

// Files makes files from the kernel's own, which show how large this machine is.
type Files struct {
	cpuinfo func() ([]byte, error)
	meminfo func() ([]byte, error)
	release func() ([]byte, error)

	mu       sync.Mutex
	cpuinfos map[int]File // by the number of processors that they show
}

// NewFiles returns those of a directory with the kernel's file system proc.
func NewFiles(proc string) *Files {
	once := func(name string) func() ([]byte, error) {
		return sync.OnceValues(func() ([]byte, error) { return os.ReadFile(filepath.Join(proc, name)) })
	}
	return &Files{cpuinfo: once("cpuinfo"), meminfo: once("meminfo"), release: once("sys/kernel/osrelease"), cpuinfos: map[int]File{}}
}

// Describe reports whether the kernel's files are those of a machine with so many processors and so
// much memory that runs this release of the kernel.
func (f *Files) Describe(processors int, memory int64, release string) bool {
	cpuinfo, err := f.cpuinfo()
	if err != nil || processors != bytes.Count(cpuinfo, []byte("processor\t")) {
		return false
	}
	meminfo, err := f.meminfo()
	if err != nil || totalOf(meminfo) != memory>>10 {
		return false
	}
	own, err := f.release()
	return err == nil && string(bytes.TrimSpace(own)) == release
}

// totalOf is the memory of a machine by its meminfo, in KiB.
func totalOf(meminfo []byte) int64 {
	for line := range bytes.Lines(meminfo) {
		if value, found := bytes.CutPrefix(line, []byte("MemTotal:")); found {
			total, _ := strconv.ParseInt(string(bytes.TrimSuffix(bytes.TrimSpace(value), []byte(" kB"))), 10, 64)
			return total
		}
	}
	return 0
}

// Of returns the files that show a container its limits, those of processors where these are less
// than a machine with so many.
func (f *Files) Of(limits engine.Resources, machine int) ([]File, error) {
	var files []File
	if count := CountOf(limits.NanoCPUs); count > 0 && count < machine {
		cpuinfo, err := f.withProcessors(count)
		if err != nil {
			return nil, err
		}
		files = append(files, cpuinfo, newFile(Online, int64(count), onlineText(count)))
	}
	if limits.MemoryBytes > 0 {
		meminfo, err := f.withMemory(limits.MemoryBytes)
		if err != nil {
			return nil, err
		}
		files = append(files, newFile(MemInfo, limits.MemoryBytes>>10, meminfo))
	}
	return files, nil
}

// onlineText is the list of so many processors, in the form of /sys/devices/system/cpu/online.
func onlineText(count int) []byte {
	if count == 1 {
		return []byte("0\n")
	}
	return fmt.Appendf(nil, "0-%d\n", count-1)
}

// withProcessors returns /proc/cpuinfo with the first processors alone.
func (f *Files) withProcessors(count int) (File, error) {
	all, err := f.cpuinfo()
	if err != nil {
		return File{}, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	made, known := f.cpuinfos[count]
	if !known {
		made = newFile(CPUInfo, int64(count), firstProcessors(all, count))
		f.cpuinfos[count] = made
	}
	return made, nil
}

// firstProcessors cuts a cpuinfo after so many processors. What some machines have after the last
// one, about all of them, stays. Numbers of processors of one chip are at most count.
func firstProcessors(all []byte, count int) []byte {
	var kept []byte
	seen, processor := 0, false
	for line := range bytes.Lines(all) {
		name, value, _ := bytes.Cut(line, []byte(":"))
		switch key := string(bytes.TrimSpace(name)); key {
		case "processor":
			seen++
			processor = true
		case "":
			if processor && seen <= count {
				kept = append(kept, '\n')
			}
			processor = false
			continue
		case "siblings", "cpu cores":
			if n, err := strconv.Atoi(string(bytes.TrimSpace(value))); err == nil && n > count {
				line = fmt.Appendf(nil, "%s: %d\n", name, count)
			}
		}
		if !processor || seen <= count {
			kept = append(kept, line...)
		}
	}
	return kept
}

// withMemory returns /proc/meminfo of a machine with so much memory, all of it free. It is a file,
// and does not follow what is used; the control group does.
func (f *Files) withMemory(limit int64) ([]byte, error) {
	all, err := f.meminfo()
	if err != nil {
		return nil, err
	}
	kib := limit >> 10
	var made strings.Builder
	for line := range strings.Lines(string(all)) {
		name, value, found := strings.Cut(line, ":")
		if !found {
			continue
		}
		number, unit, _ := strings.Cut(strings.TrimSpace(value), " ")
		switch name {
		case "MemTotal":
			if machine, err := strconv.ParseInt(number, 10, 64); err == nil {
				kib = min(kib, machine)
			}
			number = strconv.FormatInt(kib, 10)
		case "MemFree", "MemAvailable", "CommitLimit":
			number = strconv.FormatInt(kib, 10)
		case "Hugepagesize", "VmallocTotal": // sizes, of which nothing is used
		default:
			number = "0"
		}
		fmt.Fprintf(&made, "%-16s%8s", name+":", number)
		if unit != "" {
			made.WriteString(" " + unit)
		}
		made.WriteByte('\n')
	}
	return []byte(made.String()), nil
}
