// Package disk makes file systems of a fixed size: what one container may write. Each is an ext4
// file system in a sparse file, on a loop device, which works on every file system that can have
// sparse files. Project quotas would need one that was made and mounted for them.
package disk

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"
)

// MinBytes and MaxBytes are the smallest and the largest size of a file system.
const (
	MinBytes = 16 << 20
	MaxBytes = 1 << 40
)

// Format is an empty file system, of which copies are made.
type Format struct {
	bytes int64
	parts []part // all that is not zero
	tries int    // how often Make looks for a free loop device
}

// Durability is what of a file system outlasts a crash of the host.
type Durability int

// The values of [Durability].
const (
	// Lost is that nothing of it is used again.
	Lost Durability = iota
	// Journaled is that [Reopen] finds it consistent, with what was synced. The journal takes a
	// part of its bytes.
	Journaled
)

// part is what stands at one place of a file.
type part struct {
	offset  int64
	content []byte
}

// formatArgs name everything that the host could have other defaults for. There is a journal only
// where the file system is used after a crash of the host; no blocks are reserved for root, which
// is who writes; and neither copies of the superblock nor the tables of inodes are written, which
// are zero as the rest of the file.
func formatArgs(d Durability, size int64) []string {
	features, more := "", "lazy_itable_init=1"
	var journal []string
	if d == Journaled {
		features, more = "has_journal,", "lazy_itable_init=1,lazy_journal_init=1"
		journal = []string{"-J", "size=" + strconv.FormatInt(journalBytes(size)>>20, 10)}
	}
	return append([]string{
		"-q", "-F", "-b", "4096", "-I", "256", "-i", "16384", "-m", "0", "-L", "sandbox",
		"-O", "none," + features + "dir_index,dir_nlink,ext_attr,extent,extra_isize,filetype,flex_bg,huge_file,large_file,sparse_super2,uninit_bg",
		"-E", "num_backup_sb=0," + more + ",nodiscard,root_owner=0:0",
	}, journal...)
}

// journalBytes is the smallest journal that the kernel takes, and for file systems of a GiB and
// more one that holds longer.
func journalBytes(size int64) int64 {
	if size < 1<<30 {
		return 4 << 20
	}
	return 16 << 20
}

// NewFormat makes an empty file system of a number of bytes with mkfs.ext4, in a file in the
// directory that is removed at once. Without room for it the error wraps ENOSPC.
func NewFormat(ctx context.Context, directory string, size int64, durability Durability) (*Format, error) {
	if size < MinBytes || size > MaxBytes {
		return nil, fmt.Errorf("a file system of %d bytes: the size must be from %d to %d", size, MinBytes, int64(MaxBytes))
	}
	program, err := findProgram()
	if err != nil {
		return nil, err
	}
	file, err := os.CreateTemp(directory, ".format-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	defer func() { _ = os.Remove(file.Name()) }()
	if err := file.Truncate(size); err != nil {
		return nil, err
	}
	mkfs := exec.CommandContext(ctx, program, append(formatArgs(durability, size), file.Name())...)
	mkfs.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C"}
	if printed, err := mkfs.CombinedOutput(); err != nil {
		if bytes.Contains(printed, []byte("No space left on device")) {
			err = unix.ENOSPC
		}
		return nil, fmt.Errorf("%s: %w: %s", program, err, bytes.TrimSpace(printed))
	}
	f := &Format{bytes: size, tries: attachTries}
	if err := f.read(file); err != nil {
		return nil, fmt.Errorf("read a new file system: %w", err)
	}
	return f, nil
}

// findProgram also looks where a service may have no path to.
func findProgram() (string, error) {
	const name = "mkfs.ext4"
	if path, err := exec.LookPath(name); err == nil {
		return filepath.Abs(path)
	}
	for _, directory := range []string{"/usr/sbin", "/sbin"} {
		if path, err := exec.LookPath(filepath.Join(directory, name)); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("%s is not installed: it is in the package e2fsprogs", name)
}

// read takes what was written, without the zeros.
func (f *Format) read(file *os.File) error {
	const block = 4096
	zeros := make([]byte, block)
	for next := int64(0); ; {
		start, err := file.Seek(next, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) { // no more
			return nil
		}
		if err != nil {
			return err
		}
		end, err := file.Seek(start, unix.SEEK_HOLE)
		if err != nil {
			return err
		}
		for offset := start; offset < end; offset += block {
			content := make([]byte, min(block, end-offset))
			if _, err := file.ReadAt(content, offset); err != nil {
				return err
			}
			if !bytes.Equal(content, zeros[:len(content)]) {
				f.add(offset, content)
			}
		}
		next = end
	}
}

// add appends to the last part where that ends there.
func (f *Format) add(offset int64, content []byte) {
	if n := len(f.parts); n > 0 {
		last := &f.parts[n-1]
		if last.offset+int64(len(last.content)) == offset {
			last.content = append(last.content, content...)
			return
		}
	}
	f.parts = append(f.parts, part{offset: offset, content: content})
}

// Make makes an empty file system in a new file, attaches it to a loop device and mounts it
// nowhere. The device and the mount go when what is returned is closed and nothing uses the file
// system any more, also when this process is killed.
func (f *Format) Make(path string) (*Disk, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	if err := file.Truncate(f.bytes); err != nil {
		return nil, err
	}
	for _, p := range f.parts {
		if _, err := file.WriteAt(p.content, p.offset); err != nil {
			return nil, err
		}
	}
	device, err := attach(file, f.tries)
	if err != nil {
		return nil, fmt.Errorf("loop device for %s: %w", path, err)
	}
	defer func() { _ = device.Close() }() // the mount keeps it
	return open(device.Name())
}

// Reopen attaches a file system that Make has made, which nothing uses, to a loop device, and
// mounts it nowhere, as Make does. It may have been in use when the host crashed. The error wraps
// [ErrBroken] when there is none that could be mounted later: the file is missing, or what it has
// is damaged.
func Reopen(path string) (*Disk, error) {
	file, err := os.OpenFile(path, os.O_RDWR|unix.O_NOFOLLOW, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("%w: %w", ErrBroken, err)
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if info.Size() < MinBytes {
		return nil, fmt.Errorf("%w: %s is cut off", ErrBroken, path)
	}
	device, err := attach(file, attachTries)
	if err != nil {
		return nil, fmt.Errorf("loop device for %s: %w", path, err)
	}
	defer func() { _ = device.Close() }() // the mount keeps it
	opened, err := open(device.Name())
	for _, damage := range []error{unix.EINVAL, unix.EUCLEAN, unix.EBADMSG} {
		if errors.Is(err, damage) {
			return nil, fmt.Errorf("%w: %w", ErrBroken, err)
		}
	}
	return opened, err
}

// ErrBroken is the error of [Reopen] for a file system that cannot be used any more.
var ErrBroken = errors.New("the file system is missing or damaged")

// Disk is a file system that this process keeps from being unmounted.
type Disk struct {
	device string   // such as /dev/loop7
	root   *os.File // its root directory
}

// open mounts the file system of a device, or opens the one that is mounted.
func open(device string) (*Disk, error) {
	d := &Disk{device: device}
	mount, err := d.Mount()
	if err != nil {
		return nil, err
	}
	defer func() { _ = mount.Close() }()
	fd, err := unix.Openat(int(mount.Fd()), ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open the root of", Path: device, Err: err}
	}
	d.root = os.NewFile(uintptr(fd), device)
	return d, nil
}

// Mount returns a mount of the file system that is nowhere yet. The kernel removes it when the file
// is closed before it was moved to a place.
func (d *Disk) Mount() (*os.File, error) {
	context, err := unix.Fsopen("ext4", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("ext4: fsopen: %w", err)
	}
	defer func() { _ = unix.Close(context) }()
	// What is deleted in it is given back to the file. The tables of inodes need not be written:
	// they are zero.
	for _, option := range []struct{ name, value string }{{"source", d.device}, {"discard", ""}, {"noinit_itable", ""}, {"errors", "remount-ro"}} {
		if option.value == "" {
			err = unix.FsconfigSetFlag(context, option.name)
		} else {
			err = unix.FsconfigSetString(context, option.name, option.value)
		}
		if err != nil {
			return nil, fmt.Errorf("ext4: option %s: %w", option.name, err)
		}
	}
	if err := unix.FsconfigCreate(context); err != nil {
		return nil, fmt.Errorf("ext4: mount %s: %w", d.device, err)
	}
	mount, err := unix.Fsmount(context, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NODEV)
	if err != nil {
		return nil, fmt.Errorf("ext4: fsmount: %w", err)
	}
	return os.NewFile(uintptr(mount), d.device), nil
}

// Mkdir makes a directory below the root of the file system, with exactly this mode.
func (d *Disk) Mkdir(name string, mode uint32) error {
	if err := unix.Mkdirat(int(d.root.Fd()), name, mode); err != nil {
		return &os.PathError{Op: "mkdir", Path: name, Err: err}
	}
	if err := unix.Fchmodat(int(d.root.Fd()), name, mode, 0); err != nil { // whatever the umask is
		return &os.PathError{Op: "chmod", Path: name, Err: err}
	}
	return nil
}

// Path returns a path of what is below the root, for this process and until Close.
func (d *Disk) Path(name string) string {
	return "/proc/self/fd/" + strconv.Itoa(int(d.root.Fd())) + "/" + name
}

// Open opens a file below the root for reading. It follows no symbolic link. After Close its error
// is [os.ErrClosed].
func (d *Disk) Open(name string) (*os.File, error) {
	raw, err := d.root.SyscallConn()
	if err != nil {
		return nil, err
	}
	fd, opened := -1, error(nil)
	// The number of the root's descriptor is not another file's meanwhile.
	err = raw.Control(func(root uintptr) {
		fd, opened = unix.Openat2(int(root), name, &unix.OpenHow{
			Flags: unix.O_RDONLY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS,
		})
	})
	if err = errors.Join(err, opened); err != nil {
		return nil, &os.PathError{Op: "open", Path: name, Err: err}
	}
	return os.NewFile(uintptr(fd), name), nil
}

// Discard ends every use of the file system: what was not written to its file yet never is. So the
// last unmount, which may be part of the end of a container's last process, does not wait for the
// host's disk.
func (d *Disk) Discard() error {
	const (
		shutdown       = 0x8004587d // EXT4_IOC_SHUTDOWN
		withoutFlushes = 2          // EXT4_GOING_FLAGS_NOLOGFLUSH
	)
	if err := unix.IoctlSetPointerInt(int(d.root.Fd()), shutdown, withoutFlushes); err != nil {
		return fmt.Errorf("shut down the file system of %s: %w", d.device, err)
	}
	return nil
}

// Close lets the file system be unmounted when nothing else uses it.
func (d *Disk) Close() error { return d.root.Close() }

// Attached has the paths of the loop devices that are in use, by the files that they have.
type Attached map[fileID]string

// fileID identifies a file on the host.
type fileID struct{ device, inode uint64 }

// FindAttached looks at every loop device.
func FindAttached() (Attached, error) {
	devices, err := filepath.Glob("/sys/block/loop*/loop/backing_file") // of those that are in use
	if err != nil {
		return nil, err
	}
	attached := Attached{}
	for _, path := range devices {
		device := filepath.Join("/dev", filepath.Base(filepath.Dir(filepath.Dir(path))))
		if id, err := fileOf(device); err == nil { // it may have been detached meanwhile
			attached[id] = device
		}
	}
	return attached, nil
}

func fileOf(device string) (fileID, error) {
	file, err := os.Open(device)
	if err != nil {
		return fileID{}, err
	}
	defer func() { _ = file.Close() }()
	info, err := unix.IoctlLoopGetStatus64(int(file.Fd()))
	if err != nil {
		return fileID{}, err
	}
	return fileID{device: info.Device, inode: info.Inode}, nil
}

// Open opens the file system of a file that another process has made and something still uses. The
// error is [os.ErrNotExist] when nothing does.
func (a Attached) Open(path string) (*Disk, error) {
	var info unix.Stat_t
	if err := unix.Lstat(path, &info); err != nil {
		return nil, &os.PathError{Op: "lstat", Path: path, Err: err}
	}
	device, ok := a[fileID{device: info.Dev, inode: info.Ino}]
	if !ok {
		return nil, fmt.Errorf("%s has no loop device: %w", path, os.ErrNotExist)
	}
	// The device is kept, so that it cannot become another file's meanwhile.
	kept, err := os.Open(device)
	if err != nil {
		return nil, err
	}
	defer func() { _ = kept.Close() }()
	if id, err := fileOf(device); err != nil || id != (fileID{device: info.Dev, inode: info.Ino}) {
		return nil, fmt.Errorf("%s has no loop device any more: %w", path, os.ErrNotExist)
	}
	return open(device)
}

// attaching is held from the search for a free loop device until it is taken, so that no two
// callers in this process find the same one.
var attaching sync.Mutex

// attachTries is how often a free device is looked for: another process may take the one that was
// found.
const attachTries = 100

// attach attaches a file to a free loop device, which is detached when nothing uses it any more.
func attach(file *os.File, tries int) (device *os.File, err error) {
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = control.Close() }()
	config := unix.LoopConfig{
		Fd: uint32(file.Fd()), Size: 4096, //nolint:gosec // a descriptor
		// Direct: what is written is not kept in the host's memory a second time, where that is
		// possible.
		Info: unix.LoopInfo64{Flags: unix.LO_FLAGS_AUTOCLEAR | unix.LO_FLAGS_DIRECT_IO},
	}
	copy(config.Info.File_name[:], filepath.Base(file.Name()))
	attaching.Lock()
	defer attaching.Unlock()
	for range tries {
		number, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return nil, fmt.Errorf("find a free one: %w", err)
		}
		device, err := os.OpenFile("/dev/loop"+strconv.Itoa(number), os.O_RDWR, 0)
		if err != nil {
			return nil, err
		}
		if err = unix.IoctlLoopConfigure(int(device.Fd()), &config); err == nil {
			return device, nil
		}
		_ = device.Close()
		if err != unix.EBUSY {
			return nil, fmt.Errorf("configure %s: %w", device.Name(), err)
		}
	}
	return nil, errors.New("others take every device that is free")
}
