package files_test

import (
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"sandbox.internal/execd/files"
)

const (
	accessACL  = "system.posix_acl_access"
	defaultACL = "system.posix_acl_default"
)

// aclOf is user::rw-, user:4242:rw-, group::---, mask:: as given, other::---, as acl(5) lays it
// out.
func aclOf(mask uint16) string {
	const all = 1<<32 - 1
	acl := binary.LittleEndian.AppendUint32(nil, 2)
	for _, entry := range []struct {
		tag, permissions uint16
		id               uint32
	}{{1, 6, all}, {2, 6, 4242}, {4, 0, all}, {16, mask, all}, {32, 0, all}} {
		acl = binary.LittleEndian.AppendUint16(acl, entry.tag)
		acl = binary.LittleEndian.AppendUint16(acl, entry.permissions)
		acl = binary.LittleEndian.AppendUint32(acl, entry.id)
	}
	return string(acl)
}

// acl returns the ACL of a file, empty when it has none.
func acl(t *testing.T, path string) string {
	t.Helper()
	text := make([]byte, 256)
	n, err := unix.Lgetxattr(path, accessACL, text)
	if errors.Is(err, unix.ENODATA) {
		return ""
	}
	must(t, err)
	return string(text[:n])
}

func TestReplacedFilesKeepTheirACL(t *testing.T) {
	replace := func(t *testing.T, f *files.Files, path string) {
		must(t, f.Replace(map[string]files.Replacement{path: {Old: "old", New: "new"}}))
	}
	send := func(mode *int) func(*testing.T, *files.Files, string) {
		return func(t *testing.T, f *files.Files, path string) {
			_, err := upload(t, f, files.UploadMeta{Path: path, Permission: files.Permission{Mode: mode}}, []byte("new"))
			must(t, err)
		}
	}
	for _, test := range []struct {
		name      string
		acl       string // of the file
		directory string // the default in its directory
		change    func(t *testing.T, f *files.Files, path string)
		want      string
		mode      int
	}{
		{"replace", aclOf(6), "", replace, aclOf(6), 660},
		{"replace where new files have another", aclOf(6), aclOf(7), replace, aclOf(6), 660},
		{"replace without an ACL, where new files have one", "", aclOf(6), replace, "", 640},
		{"upload", aclOf(6), "", send(nil), aclOf(6), 660},
		{"upload with a mode, which bounds the ACL", aclOf(6), "", send(new(600)), aclOf(0), 600},
	} {
		t.Run(test.name, func(t *testing.T) {
			f, _ := newFiles(t)
			disk := mountTmpfs(t, "size=1m")
			path := filepath.Join(disk, "file")
			write(t, path, "old")
			must(t, os.Chmod(path, 0o640))
			must(t, os.Chown(path, 4243, 4243))
			if test.acl != "" {
				must(t, unix.Setxattr(path, accessACL, []byte(test.acl), 0))
			}
			if test.directory != "" {
				must(t, unix.Setxattr(disk, defaultACL, []byte(test.directory), 0))
			}
			test.change(t, f, path)
			wantEqual(t, "content", read(t, path), "new")
			if got := acl(t, path); got != test.want {
				t.Errorf("the ACL is %x, want %x", got, test.want)
			}
			wantEqual(t, "attributes", describe(t, f, path), facts{"4243", "4243", test.mode})
		})
	}
}

// TestNewFilesHaveTheACLOfTheirDirectory: nothing is there whose own they could have.
func TestNewFilesHaveTheACLOfTheirDirectory(t *testing.T) {
	f, _ := newFiles(t)
	disk := mountTmpfs(t, "size=1m")
	must(t, unix.Setxattr(disk, defaultACL, []byte(aclOf(6)), 0))
	_, err := upload(t, f, files.UploadMeta{Path: disk + "/file", Permission: files.Permission{Mode: new(660)}}, nil)
	must(t, err)
	if got := acl(t, disk+"/file"); got != aclOf(6) {
		t.Errorf("the ACL is %x, want %x", got, aclOf(6))
	}
}
