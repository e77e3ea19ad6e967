// Package overlay makes overlay file systems of directories: the root of a container, and what the
// layers of an image show together.
package overlay

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"sandbox.internal/runtime/oci/thread"
)

// Overlay is an overlay file system. The directories exist. Their paths are absolute, may be of any
// length and have any characters in them, and do not show in a container's /proc/mounts.
type Overlay struct {
	Lower []string // the layers, lowest first
	// Upper gets what is written; Work, on the same file system, is the kernel's. Without both,
	// nothing can be written, and the kernel wants two layers.
	Upper, Work string
	// Volatile leaves out every sync. The kernel refuses a Work that was mounted so before.
	Volatile bool
}

// Mount mounts the file system at a directory, in the mount namespace of this thread.
func (o Overlay) Mount(target string) error {
	if err := o.mount(target); err != nil {
		return err
	}
	// The kernel also mounts what it cannot write to, and says so in its log only.
	var info unix.Statfs_t
	err := unix.Statfs(target, &info)
	if err == nil && o.Upper != "" && info.Flags&unix.ST_RDONLY != 0 {
		err = fmt.Errorf("%w: the kernel cannot use %s, see its log", unix.EROFS, o.Work)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("overlay: mount at %s: %w", target, err), unix.Unmount(target, unix.MNT_DETACH))
	}
	return nil
}

func (o Overlay) mount(target string) error {
	return o.opened(func(f *directories) error {
		if !takesEachLayer() {
			return f.mountAtOnce(target)
		}
		mount, err := f.create(0)
		if err != nil {
			return err
		}
		defer unix.Close(mount)
		if err := unix.MoveMount(mount, "", unix.AT_FDCWD, target, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
			return fmt.Errorf("overlay: mount at %s: %w", target, err)
		}
		return nil
	})
}

// Open returns the file system as a directory to read from. The mount is at no path: it goes when
// the file is closed.
func (o Overlay) Open() (*os.File, error) {
	if !takesEachLayer() {
		return o.openAside()
	}
	const attributes = unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOSUID
	mount := -1
	err := o.opened(func(f *directories) (err error) {
		mount, err = f.create(attributes)
		return err
	})
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(mount), "overlay"), nil
}

// openAside is for kernels that without a path to mount at take an option of 255 bytes at most: it
// mounts in a mount namespace that ends with its thread. What is open keeps the mount.
func (o Overlay) openAside() (file *os.File, err error) {
	thread.Run(func() {
		if err = os.NewSyscallError("unshare", unix.Unshare(unix.CLONE_FS|unix.CLONE_NEWNS)); err != nil {
			return
		}
		if err = unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			err = &os.PathError{Op: "make private", Path: "/", Err: err}
			return
		}
		at := o.Lower[0] // any directory will do
		if err = o.opened(func(f *directories) error { return f.mountAtOnce(at) }); err == nil {
			file, err = os.OpenFile(at, unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
		}
	})
	return file, err
}

// takesEachLayer reports whether the kernel has the option lowerdir+, which Linux before 6.8 lacks.
// It is asked once: a kernel before 6.5 takes any option, and writes a line to its log when the
// file system is then created.
var takesEachLayer = sync.OnceValue(func() bool {
	context, err := unix.Fsopen("overlay", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return true // the same error is that of every overlay
	}
	defer unix.Close(context)
	if unix.FsconfigSetString(context, "no_such_option", "value") == nil {
		return false
	}
	// EINVAL is the answer to an unknown option. A path that is not there has another one.
	return !errors.Is(unix.FsconfigSetString(context, "lowerdir+", "/no/such/directory"), unix.EINVAL)
})

// MaxLayers is how many layers the kernel takes, an upper one included.
func MaxLayers() int {
	if takesEachLayer() {
		return 500
	}
	return os.Getpagesize() / 20 // which have to be named in one page
}

// directories are the opened directories of an overlay, as the kernel is given them: paths of
// descriptors.
type directories struct {
	overlay     Overlay
	files       []int
	lower       []string // highest first
	upper, work string
}

// opened calls use with the directories opened.
func (o Overlay) opened(use func(*directories) error) (err error) {
	f := &directories{overlay: o, lower: make([]string, len(o.Lower))}
	defer func() {
		for _, fd := range f.files {
			_ = unix.Close(fd)
		}
	}()
	for i, path := range o.Lower {
		if f.lower[len(f.lower)-1-i], err = f.open(path); err != nil {
			return err
		}
	}
	if o.Upper != "" {
		if f.upper, err = f.open(o.Upper); err != nil {
			return err
		}
		if f.work, err = f.open(o.Work); err != nil {
			return err
		}
	}
	return use(f)
}

func (f *directories) open(path string) (string, error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", &os.PathError{Op: "open", Path: path, Err: err}
	}
	f.files = append(f.files, fd)
	return "/proc/self/fd/" + strconv.Itoa(fd), nil
}

// create returns a mount that is at no path.
func (f *directories) create(attributes int) (mount int, err error) {
	context, err := unix.Fsopen("overlay", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("overlay: fsopen: %w", err)
	}
	defer unix.Close(context)
	if err := unix.FsconfigSetString(context, "source", "overlay"); err != nil {
		return -1, failure(context, "source", err)
	}
	if err := f.setEachLayer(context); err != nil {
		return -1, err
	}
	if f.upper != "" {
		if err := unix.FsconfigSetString(context, "upperdir", f.upper); err != nil {
			return -1, failure(context, "upper "+f.overlay.Upper, err)
		}
		if err := unix.FsconfigSetString(context, "workdir", f.work); err != nil {
			return -1, failure(context, "work "+f.overlay.Work, err)
		}
	}
	if f.overlay.Volatile {
		if err := unix.FsconfigSetFlag(context, "volatile"); err != nil {
			return -1, failure(context, "volatile", err)
		}
	}
	if err := unix.FsconfigCreate(context); err != nil {
		return -1, failure(context, "create of "+f.overlay.describe(), err)
	}
	if mount, err = unix.Fsmount(context, unix.FSMOUNT_CLOEXEC, attributes); err != nil {
		return -1, failure(context, "fsmount", err)
	}
	return mount, nil
}

// setEachLayer sets one option per layer.
func (f *directories) setEachLayer(context int) error {
	for i, layer := range f.lower {
		if err := unix.FsconfigSetString(context, "lowerdir+", layer); err != nil {
			return failure(context, "layer "+f.overlay.Lower[len(f.lower)-1-i], err)
		}
	}
	return nil
}

// mountAtOnce mounts with one option for all layers, of at most a page together with the others.
func (f *directories) mountAtOnce(target string) error {
	data := "lowerdir=" + strings.Join(f.lower, ":")
	if f.upper != "" {
		data += ",upperdir=" + f.upper + ",workdir=" + f.work
	}
	if f.overlay.Volatile {
		data += ",volatile"
	}
	if len(data) >= os.Getpagesize() {
		return fmt.Errorf("overlay: %d layers are too many for this kernel", len(f.lower))
	}
	if err := unix.Mount("overlay", target, "overlay", 0, data); err != nil {
		return fmt.Errorf("overlay: mount at %s: %w", target, err)
	}
	return nil
}

// describe names what an error that is about none of the directories alone may be about.
func (o Overlay) describe() string {
	text := strconv.Itoa(len(o.Lower)) + " layers"
	if o.Upper != "" {
		text += ", upper " + o.Upper + ", work " + o.Work
	}
	return text
}

// failure returns an error with the kernel's message about it.
func failure(context int, what string, err error) error {
	var message [512]byte
	if n, _ := unix.Read(context, message[:]); n > 2 {
		return fmt.Errorf("overlay: %s: %w: %s", what, err, strings.TrimSpace(string(message[2:n]))) // "e overlay: ..."
	}
	return fmt.Errorf("overlay: %s: %w", what, err)
}
