package oci

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"

	"sandbox.internal/runtime/oci/bundle"
)

// hostFiles are the kernel's files that show how large this machine is.
type hostFiles struct {
	cpuinfo func() ([]byte, error)
	meminfo func() ([]byte, error)

	mu       sync.Mutex
	cpuinfos map[int][]byte // by the number of processors that they show
}

// newHostFiles returns those of a folder with the kernel's file system proc.
func newHostFiles(proc string) *hostFiles {
	once := func(name string) func() ([]byte, error) {
		return sync.OnceValues(func() ([]byte, error) { return os.ReadFile(filepath.Join(proc, name)) })
	}
	return &hostFiles{cpuinfo: once("cpuinfo"), meminfo: once("meminfo"), cpuinfos: map[int][]byte{}}
}

// writeShown writes the files that show the container its own limits, where these are less than the
// machine.
func (s *start) writeShown(folder string) error {
	limits := s.spec.Resources
	files := map[string][]byte{}
	if count := processorsOf(limits.NanoCPUs); count > 0 && count < runtime.NumCPU() && !s.runtime.OwnKernel {
		cpuinfo, err := s.hostFiles.withProcessors(count)
		if err != nil {
			return err
		}
		files[bundle.CPUInfoFile], files[bundle.OnlineFile] = cpuinfo, onlineText(count)
	}
	if limits.MemoryBytes > 0 && !s.runtime.OwnKernel {
		meminfo, err := s.hostFiles.withMemory(limits.MemoryBytes)
		if err != nil {
			return err
		}
		files[bundle.MemInfoFile] = meminfo
	}
	for name, content := range files {
		if err := writeShared(filepath.Join(folder, name), content); err != nil {
			return err
		}
	}
	return nil
}

// onlineText is the list of so many processors, in the form of /sys/devices/system/cpu/online.
func onlineText(count int) []byte {
	if count == 1 {
		return []byte("0\n")
	}
	return fmt.Appendf(nil, "0-%d\n", count-1)
}

// withProcessors returns /proc/cpuinfo with the first processors alone.
func (h *hostFiles) withProcessors(count int) ([]byte, error) {
	all, err := h.cpuinfo()
	if err != nil {
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.cpuinfos[count] == nil {
		h.cpuinfos[count] = firstProcessors(all, count)
	}
	return h.cpuinfos[count], nil
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
func (h *hostFiles) withMemory(limit int64) ([]byte, error) {
	all, err := h.meminfo()
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
