package main

import (
	"os"
	"strings"
	"syscall"
)

const (
	hostsPath = "/etc/hosts"
	// ipv6Off has a 1 when the loopback interface has no ::1.
	ipv6Off = "/proc/sys/net/ipv6/conf/lo/disable_ipv6"
	// largestHosts is more than any engine writes; the file may also be one of the image.
	largestHosts = 64 << 10
)

// correctHosts takes the name localhost from ::1 where that does not exist. Engines write the line
// for every container, and whoever connects to localhost then tries an address first that refuses.
// What cannot be corrected stays as it is: a sandbox works with it.
func correctHosts(hosts, off string) {
	content, err := os.ReadFile(off)
	if os.IsNotExist(err) {
		content = []byte("1") // a kernel without IPv6
	}
	if strings.TrimSpace(string(content)) != "1" {
		return
	}
	file, err := os.OpenFile(hosts, os.O_RDWR|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil || !info.Mode().IsRegular() || info.Size() > largestHosts {
		return
	}
	before := make([]byte, info.Size())
	if n, err := file.ReadAt(before, 0); err != nil || n != len(before) {
		return
	}
	after := withoutLocalhost6(string(before))
	if after == string(before) {
		return
	}
	// In place: the file is a mount, which nothing can replace. Shorter than before, so no one who
	// reads it meanwhile misses a line.
	if _, err := file.WriteAt([]byte(after), 0); err == nil {
		_ = file.Truncate(int64(len(after)))
	}
}

// withoutLocalhost6 returns a hosts file in which ::1 has every name but localhost.
func withoutLocalhost6(hosts string) string {
	var kept strings.Builder
	for line := range strings.Lines(hosts) {
		entry, _, _ := strings.Cut(line, "#")
		words := strings.Fields(entry)
		if len(words) < 2 || words[0] != "::1" {
			kept.WriteString(line)
			continue
		}
		names := words[1:]
		others := names[:0:0]
		for _, name := range names {
			if !strings.EqualFold(name, "localhost") && !strings.EqualFold(name, "localhost.localdomain") {
				others = append(others, name)
			}
		}
		switch {
		case len(others) == len(names):
			kept.WriteString(line)
		case len(others) > 0:
			kept.WriteString("::1\t" + strings.Join(others, " ") + "\n")
		}
	}
	return kept.String()
}
