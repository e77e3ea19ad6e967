package files_test

import (
	"os"
	"path/filepath"
	"testing"

	"sandbox.internal/execd/files"
)

// facts are whose a path is, and who may use it.
type facts struct {
	Owner, Group string
	Mode         int
}

func describe(t testing.TB, f *files.Files, path string) facts {
	t.Helper()
	infos, err := f.Info([]string{path})
	must(t, err)
	return facts{Owner: infos[path].Owner, Group: infos[path].Group, Mode: infos[path].Mode}
}

func TestSetPermissions(t *testing.T) {
	tests := []struct {
		name string
		ask  files.Permission
		get  facts
	}{
		{"nothing", files.Permission{}, facts{Owner: "root", Group: "root", Mode: 644}},
		{"mode", files.Permission{Mode: new(600)}, facts{Owner: "root", Group: "root", Mode: 600}},
		{"no permission at all", files.Permission{Mode: new(0)}, facts{Owner: "root", Group: "root", Mode: 0}},
		{"one digit", files.Permission{Mode: new(4)}, facts{Owner: "root", Group: "root", Mode: 4}},
		{"owner by name", files.Permission{Owner: "nobody"}, facts{Owner: "nobody", Group: "root", Mode: 644}},
		{"owner by number", files.Permission{Owner: "4242"}, facts{Owner: "4242", Group: "root", Mode: 644}},
		{"group by name", files.Permission{Group: "daemon"}, facts{Owner: "root", Group: "daemon", Mode: 644}},
		{"group by number", files.Permission{Group: "4242"}, facts{Owner: "root", Group: "4242", Mode: 644}},
		{
			"special bits survive the change of owner",
			files.Permission{Owner: "4242", Group: "4243", Mode: new(6755)},
			facts{Owner: "4242", Group: "4243", Mode: 6755},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			f, root := newFiles(t)
			write(t, filepath.Join(root, "file"), "")
			must(t, f.SetPermissions(map[string]files.Permission{"file": test.ask}))
			wantEqual(t, "permission", describe(t, f, "file"), test.get)
		})
	}
}

func TestSetPermissionsFollowsLinksAndTakesDirectories(t *testing.T) {
	f, root := newFiles(t)
	mkdir(t, filepath.Join(root, "dir"))
	must(t, os.Symlink("dir", filepath.Join(root, "link")))
	must(t, f.SetPermissions(map[string]files.Permission{"link": {Owner: "4242", Mode: new(700)}}))
	wantEqual(t, "directory", describe(t, f, "dir"), facts{Owner: "4242", Group: "root", Mode: 700})
	wantEqual(t, "link", describe(t, f, "link"), facts{Owner: "root", Group: "root", Mode: 777})
}

func TestSetPermissionsChecksAllBeforeTheFirstChange(t *testing.T) {
	tests := []struct {
		name  string
		path  string
		ask   files.Permission
		kind  files.Kind
		parts []string
	}{
		{"missing", "z", files.Permission{Mode: new(600)}, files.KindNotFound, []string{"/z: no such file"}},
		{"broken link", "broken", files.Permission{Mode: new(600)}, files.KindNotFound, []string{"/broken: no such file"}},
		{"unknown owner", "b", files.Permission{Owner: "no-such-user"}, files.KindInvalid, []string{"/b: owner", "no-such-user"}},
		{"unknown group", "b", files.Permission{Group: "no-such-group"}, files.KindInvalid, []string{"/b: group", "no-such-group"}},
		{"owner that means unchanged", "b", files.Permission{Owner: "4294967295"}, files.KindInvalid, []string{"/b: owner"}},
		{"negative owner", "b", files.Permission{Owner: "-1"}, files.KindInvalid, []string{"/b: owner"}},
		{"digit 8", "b", files.Permission{Mode: new(680)}, files.KindInvalid, []string{"/b: mode", "680"}},
		{"five digits", "b", files.Permission{Mode: new(10644)}, files.KindInvalid, []string{"/b: mode", "10644"}},
		{"negative mode", "b", files.Permission{Mode: new(-644)}, files.KindInvalid, []string{"/b: mode", "-644"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			f, root := newFiles(t)
			write(t, filepath.Join(root, "a"), "")
			write(t, filepath.Join(root, "b"), "")
			must(t, os.Symlink("nowhere", filepath.Join(root, "broken")))
			err := f.SetPermissions(map[string]files.Permission{"a": {Owner: "4242", Mode: new(600)}, test.path: test.ask})
			wantError(t, err, test.kind, test.parts...)
			wantEqual(t, "the first", describe(t, f, "a"), facts{Owner: "root", Group: "root", Mode: 644})
		})
	}
}
