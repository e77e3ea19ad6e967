package sshserver

import (
	"bufio"
	"context"
	"io"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"
	"sync"
	"time"

	sandbox "sandbox.internal/clients/go"
	"sandbox.internal/clients/go/execd"
)

const (
	typeFile      = execd.FileTypeFile
	typeDirectory = execd.FileTypeDirectory
	typeSymlink   = execd.FileTypeSymlink

	// maxAccounts bounds how many bytes of a sandbox's list of users or groups are read.
	maxAccounts = 1 << 20
	// overflowID is the number of an account that the sandbox has no number for, as it is the
	// kernel's.
	overflowID = 65534
)

// lister is a list that is complete.
type lister struct {
	files *files
	infos []sandbox.FileInfo
}

// ListAt implements [sftp.ListerAt].
func (l lister) ListAt(to []os.FileInfo, offset int64) (int, error) {
	if offset >= int64(len(l.infos)) {
		return 0, io.EOF
	}
	n := 0
	for _, info := range l.infos[offset:] {
		if n == len(to) {
			return n, nil
		}
		to[n] = fileInfo{info, l.files.accounts}
		n++
	}
	return n, io.EOF
}

// fileInfo is what the daemon says of a file, for package sftp.
type fileInfo struct {
	sandbox.FileInfo
	accounts *accounts
}

// Name implements [fs.FileInfo].
func (i fileInfo) Name() string { return path.Base(i.Path) }

// Size implements [fs.FileInfo].
func (i fileInfo) Size() int64 { return max(0, i.FileInfo.Size) }

// IsDir implements [fs.FileInfo].
func (i fileInfo) IsDir() bool { return i.Type == typeDirectory }

// ModTime implements [fs.FileInfo].
func (i fileInfo) ModTime() time.Time { return i.ModifiedAt }

// Sys implements [fs.FileInfo].
func (i fileInfo) Sys() any { return nil }

// Mode implements [fs.FileInfo].
func (i fileInfo) Mode() fs.FileMode {
	digits, err := strconv.ParseUint(strconv.Itoa(i.FileInfo.Mode), 8, 16)
	if err != nil {
		digits = 0
	}
	mode := fs.FileMode(digits & 0o777)
	for bit, special := range map[uint64]fs.FileMode{0o4000: fs.ModeSetuid, 0o2000: fs.ModeSetgid, 0o1000: fs.ModeSticky} {
		if digits&bit != 0 {
			mode |= special
		}
	}
	switch i.Type {
	case typeFile:
	case typeDirectory:
		mode |= fs.ModeDir
	case typeSymlink:
		mode |= fs.ModeSymlink
	default:
		mode |= fs.ModeNamedPipe // or a socket or a device, which clients do not copy either
	}
	return mode
}

// target returns the target of a symbolic link; it reports false for anything else.
func (i fileInfo) target() (string, bool) {
	switch {
	case i.Type != typeSymlink:
		return "", false
	case i.RawLinkTarget != nil:
		return string(i.RawLinkTarget), true
	case i.LinkTarget != nil:
		return *i.LinkTarget, true
	}
	return "", true
}

// Uid implements [sftp.FileInfoUidGid].
func (i fileInfo) Uid() uint32 { return i.accounts.uid(i.Owner) } //nolint:revive,staticcheck // the name that package sftp wants

// Gid implements [sftp.FileInfoUidGid].
func (i fileInfo) Gid() uint32 { return i.accounts.gid(i.Group) } //nolint:revive,staticcheck // as above

// accounts knows the numbers of the users and groups of a sandbox, which the daemon names. They are
// read when they are first needed.
type accounts struct {
	ctx context.Context // of the session
	box *sandbox.Sandbox

	mu            sync.Mutex
	users, groups *accountList // nil before
}

// accountList has what /etc/passwd or /etc/group says.
type accountList struct {
	numbers map[string]uint32
	names   map[string]string // by number
}

func (a *accounts) uid(name string) uint32 { return a.number(&a.users, "/etc/passwd", name) }
func (a *accounts) gid(name string) uint32 { return a.number(&a.groups, "/etc/group", name) }

// number returns the number of an account.
func (a *accounts) number(list **accountList, file, name string) uint32 {
	if name == "root" {
		return 0
	}
	if id, err := strconv.ParseUint(name, 10, 32); err == nil {
		return uint32(id)
	}
	if id, ok := a.list(list, file).numbers[name]; ok {
		return id
	}
	return overflowID
}

func (a *accounts) userName(uid string) string  { return a.name(&a.users, "/etc/passwd", uid) }
func (a *accounts) groupName(gid string) string { return a.name(&a.groups, "/etc/group", gid) }

// name returns the name of an account, or its number when it has none.
func (a *accounts) name(list **accountList, file, number string) string {
	if number == "0" {
		return "root"
	}
	if name, ok := a.list(list, file).names[number]; ok {
		return name
	}
	return number
}

// list reads a list of accounts once. One that cannot be read is empty.
func (a *accounts) list(list **accountList, file string) *accountList {
	a.mu.Lock()
	defer a.mu.Unlock()
	if *list != nil {
		return *list
	}
	read := &accountList{numbers: map[string]uint32{}, names: map[string]string{}}
	*list = read
	content, err := a.box.Files.Open(a.ctx, file, nil)
	if err != nil {
		return read
	}
	defer func() { _ = content.Close() }()
	lines := bufio.NewScanner(io.LimitReader(content, maxAccounts))
	for lines.Scan() {
		fields := strings.SplitN(lines.Text(), ":", 4)
		if len(fields) < 3 {
			continue
		}
		id, err := strconv.ParseUint(fields[2], 10, 32)
		if err != nil {
			continue
		}
		if _, known := read.numbers[fields[0]]; !known { // the first one counts
			read.numbers[fields[0]] = uint32(id)
		}
		if _, known := read.names[fields[2]]; !known {
			read.names[fields[2]] = fields[0]
		}
	}
	return read
}
