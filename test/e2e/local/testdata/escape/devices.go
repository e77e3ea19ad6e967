package main

import "golang.org/x/sys/unix"

// devices makes nodes of devices that are the host's.
func devices() {
	for name, number := range map[string]struct {
		kind         uint32
		major, minor uint32
	}{
		"sda": {unix.S_IFBLK, 8, 0}, "vda": {unix.S_IFBLK, 254, 0}, "xvda": {unix.S_IFBLK, 202, 0}, "nvme": {unix.S_IFBLK, 259, 0},
		"loop0": {unix.S_IFBLK, 7, 0}, "ram0": {unix.S_IFBLK, 1, 0}, "dm-0": {unix.S_IFBLK, 253, 0},
		"mem": {unix.S_IFCHR, 1, 1}, "port": {unix.S_IFCHR, 1, 4}, "kmsg": {unix.S_IFCHR, 1, 11}, "tty1": {unix.S_IFCHR, 4, 1},
		"console": {unix.S_IFCHR, 5, 1}, "fuse": {unix.S_IFCHR, 10, 229}, "loop-control": {unix.S_IFCHR, 10, 237},
		"mapper": {unix.S_IFCHR, 10, 236}, "tun": {unix.S_IFCHR, 10, 200}, "kvm": {unix.S_IFCHR, 10, 232}, "uinput": {unix.S_IFCHR, 10, 223},
		"cpu": {unix.S_IFCHR, 202, 0},
	} {
		path := "/tmp/device-" + name
		attempt("make and open the device "+name, func() error {
			if err := unix.Mknod(path, number.kind|0o600, int(unix.Mkdev(number.major, number.minor))); err != nil {
				return err
			}
			defer func() { _ = unix.Unlink(path) }()
			fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
			if err != nil {
				return err
			}
			return unix.Close(fd)
		})
	}
}
