package files

import (
	"maps"
	"os"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"sandbox.internal/execd/internal/identity"
)

// Permission is what a caller asks the owner, group and mode of a file to be.
type Permission struct {
	Owner string // a name or a number; empty leaves it unchanged
	Group string // a name or a number; empty leaves it unchanged
	// Mode is written as octal digits in a decimal number, so 644 means 0644, and 0 takes every
	// permission away. Nil leaves the mode unchanged.
	Mode *int
}

// attributes is a Permission with every name and digit understood.
type attributes struct {
	uid, gid int    // -1 is unchanged
	mode     uint32 // permission bits; only meaningful when setMode
	setMode  bool
}

// unasked changes nothing.
var unasked = attributes{uid: -1, gid: -1}

// attributesOf are all that a file has.
func attributesOf(st *unix.Stat_t) attributes {
	return attributes{uid: int(st.Uid), gid: int(st.Gid), mode: st.Mode & 0o7777, setMode: true}
}

// attributes checks p; the error names path and the field.
func (p Permission) attributes(path string) (attributes, error) {
	a := unasked
	var ok bool
	if p.Owner != "" {
		if a.uid, ok = userID(p.Owner); !ok {
			return a, invalid(path, "owner: no user %q", p.Owner)
		}
		if !identity.HasUser(uint32(a.uid)) {
			return a, invalid(path, "owner: the sandbox's user namespace has no such user: %q", p.Owner)
		}
	}
	if p.Group != "" {
		if a.gid, ok = groupID(p.Group); !ok {
			return a, invalid(path, "group: no group %q", p.Group)
		}
		if !identity.HasGroup(uint32(a.gid)) {
			return a, invalid(path, "group: the sandbox's user namespace has no such group: %q", p.Group)
		}
	}
	if p.Mode != nil {
		bits, err := strconv.ParseUint(strconv.Itoa(*p.Mode), 8, 32)
		if err != nil || bits > 0o7777 {
			return a, invalid(path, "mode: must be at most four digits of 0 to 7, got %d", *p.Mode)
		}
		a.mode, a.setMode = uint32(bits), true
	}
	return a, nil
}

// apply sets the attributes of what is at path, following a symbolic link. The owner comes first:
// the kernel drops the set-user-ID bits when a file changes hands.
func (a attributes) apply(path string) error {
	if a.uid != -1 || a.gid != -1 {
		if err := unix.Chown(path, a.uid, a.gid); err != nil {
			return classify(path, err)
		}
	}
	if a.setMode {
		return classify(path, unix.Chmod(path, a.mode))
	}
	return nil
}

// applyTo is apply for an open file.
func (a attributes) applyTo(file *os.File) error {
	if err := a.chown(file); err != nil {
		return err
	}
	return a.chmod(file)
}

func (a attributes) chown(file *os.File) error {
	if a.uid == -1 && a.gid == -1 {
		return nil
	}
	return unix.Fchown(int(file.Fd()), a.uid, a.gid)
}

func (a attributes) chmod(file *os.File) error {
	if !a.setMode {
		return nil
	}
	return unix.Fchmod(int(file.Fd()), a.mode)
}

// decimalMode writes permission bits the way the documents do.
func decimalMode(mode uint32) int {
	return int(mode>>9&7*1000 + mode>>6&7*100 + mode>>3&7*10 + mode&7)
}

// SetPermissions sets owner, group and mode of files and directories; a symbolic link is followed,
// for links have no mode of their own. A missing path is KindNotFound, an unknown name or a bad
// mode is KindInvalid.
func (f *Files) SetPermissions(wanted map[string]Permission) error {
	steps, err := f.permissionSteps(wanted)
	if err != nil {
		return err
	}
	for _, step := range steps {
		if _, err := os.Stat(step.path); err != nil {
			return classify(step.path, err)
		}
	}
	for _, step := range steps {
		if err := step.attributes.apply(step.path); err != nil {
			return err
		}
	}
	return nil
}

type permissionStep struct {
	path       string
	attributes attributes
}

// permissionSteps resolves and checks a map of permissions, in the order of the paths.
func (f *Files) permissionSteps(wanted map[string]Permission) ([]permissionStep, error) {
	steps := make([]permissionStep, 0, len(wanted))
	for _, path := range slices.Sorted(maps.Keys(wanted)) {
		abs, err := f.resolve(path)
		if err != nil {
			return nil, err
		}
		attrs, err := wanted[path].attributes(abs)
		if err != nil {
			return nil, err
		}
		steps = append(steps, permissionStep{abs, attrs})
	}
	return steps, nil
}
