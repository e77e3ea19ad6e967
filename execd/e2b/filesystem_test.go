package e2b_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"sandbox.internal/execd/e2b"
	"sandbox.internal/test/wait"
)

// The users of the machine that tests act as.
const (
	nobody     = "nobody"
	nobodyID   = 65534
	daemonUser = "daemon"
	daemonID   = 1
)

func TestStat(t *testing.T) {
	t.Parallel()
	e, dir := startEnvd(t), t.TempDir()
	file := write(t, dir+"/file", "12345")
	must(t, os.Chmod(file, 0o640))
	must(t, os.Chown(file, nobodyID, nobodyID))
	must(t, os.Chtimes(file, time.Time{}, time.Date(2024, 2, 3, 4, 5, 6, 120_000_000, time.UTC)))
	must(t, os.Symlink("file", dir+"/link"))
	must(t, os.Symlink(dir, dir+"/directory"))
	must(t, os.Symlink("nothing", dir+"/broken"))
	must(t, syscall.Mkfifo(dir+"/fifo", 0o600))
	must(t, os.Mkdir(dir+"/sticky", 0o755))
	must(t, os.Chmod(dir+"/sticky", 0o777|os.ModeSticky))
	write(t, dir+"/empty", "")
	must(t, os.Chtimes(dir+"/empty", time.Time{}, time.Unix(0, 0)))

	status, data := e.call(t, "Stat", nil, quote(file))
	want := fmt.Sprintf(`{"entry":{"name":"file","type":"FILE_TYPE_FILE","path":%q,"size":"5","mode":416,`+
		`"permissions":"-rw-r-----","owner":"nobody","group":"nogroup","modifiedTime":"2024-02-03T04:05:06.120000000Z"}}`, file)
	if status != http.StatusOK || data != want {
		t.Errorf("%d %s, want %s", status, data, want)
	}
	for name, want := range map[string]map[string]any{
		"link":      {"type": "FILE_TYPE_FILE", "symlinkTarget": file, "size": "4", "mode": 416.0, "permissions": "Lrwxrwxrwx"},
		"directory": {"type": "FILE_TYPE_DIRECTORY", "symlinkTarget": dir},
		"broken":    {"type": "FILE_TYPE_SYMLINK", "symlinkTarget": dir + "/broken"},
		"fifo":      {"type": nil, "permissions": "prw-------"},
		"sticky":    {"type": "FILE_TYPE_DIRECTORY", "permissions": "dtrwxrwxrwx", "symlinkTarget": nil},
		"empty":     {"size": nil, "modifiedTime": "1970-01-01T00:00:00Z"},
	} {
		entry := e.entries(t, "Stat", nil, quote(dir+"/"+name))[0]
		for key, value := range want {
			if entry[key] != value {
				t.Errorf("%s: %s is %v, want %v", name, key, entry[key], value)
			}
		}
	}
	e.want(t, "Stat", nil, quote(dir+"/missing"), 404, "not_found")
	e.want(t, "Stat", nil, quote(file+"/below"), 404, "not_found")
	e.want(t, "Stat", nil, quote("a\x00b"), 400, "invalid_argument")
	e.want(t, "Stat", as("no-such-user"), quote(file), 401, "unauthenticated")
}

// TestPaths: relative paths begin at the home of the user, or at the directory of the template.
func TestPaths(t *testing.T) {
	t.Parallel()
	e, dir := startEnvd(t), t.TempDir()
	write(t, dir+"/here", "")
	byDefault := header(e2b.DefaultUserHeader, daemonUser, e2b.DefaultDirectoryHeader, dir)
	for _, test := range []struct {
		header     http.Header
		path, want string
	}{
		{byDefault, "here", dir + "/here"},
		{byDefault, "./sub/../here", dir + "/here"},
		{byDefault, "", dir},
		{byDefault, "~", "/usr/sbin"},
		{as(daemonUser), "", "/usr/sbin"},
	} {
		if entry := e.entries(t, "Stat", test.header, quote(test.path))[0]; entry["path"] != test.want {
			t.Errorf("%q is %v, want %s", test.path, entry["path"], test.want)
		}
	}
}

func TestListDir(t *testing.T) {
	t.Parallel()
	e, dir := startEnvd(t), t.TempDir()
	must(t, os.MkdirAll(dir+"/a/b/c", 0o755))
	write(t, dir+"/a/file", "")
	must(t, os.Symlink(dir+"/a", dir+"/link"))
	must(t, os.Symlink(dir, dir+"/a/loop"))
	for _, test := range []struct {
		path  string
		depth int
		want  []string
	}{
		{dir, 0, []string{"a", "link"}},
		{dir, 1, []string{"a", "link"}},
		{dir, 2, []string{"a", "a/b", "a/file", "a/loop", "link"}},
		{dir, 9, []string{"a", "a/b", "a/b/c", "a/file", "a/loop", "link"}},
		{dir + "/link", 1, []string{"link/b", "link/file", "link/loop"}},
		{dir + "/a/b/c", 1, []string{}},
	} {
		got := e.entries(t, "ListDir", nil, fmt.Sprintf(`{"path":%q,"depth":%d}`, test.path, test.depth))
		if got := names(dir, got); !slices.Equal(got, test.want) {
			t.Errorf("%s, depth %d: %q, want %q", test.path, test.depth, got, test.want)
		}
	}
	e.want(t, "ListDir", nil, quote(dir+"/a/file"), 400, "invalid_argument")
	e.want(t, "ListDir", nil, quote(dir+"/missing"), 404, "not_found")
	e.want(t, "ListDir", as("no-such-user"), quote(dir), 401, "unauthenticated")
	e.want(t, "ListDir", nil, `{"path":1}`, 400, "invalid_argument")
}

// TestListDirOfMany: the answer is longer than what is gathered before it is sent.
func TestListDirOfMany(t *testing.T) {
	t.Parallel()
	e, dir := startEnvd(t), t.TempDir()
	want := []string{}
	for i := range 2000 {
		name := fmt.Sprintf("%04d", i)
		write(t, dir+"/"+name, "")
		want = append(want, name)
	}
	if got := names(dir, e.entries(t, "ListDir", nil, quote(dir))); !slices.Equal(got, want) {
		t.Errorf("%d entries, want %d", len(got), len(want))
	}
}

func TestMakeDir(t *testing.T) {
	t.Parallel()
	e, dir := startEnvd(t), t.TempDir()
	made := e.entries(t, "MakeDir", as(nobody), quote(dir+"/a/b/c"))[0]
	if made["path"] != dir+"/a/b/c" || made["type"] != "FILE_TYPE_DIRECTORY" || made["owner"] != nobody {
		t.Errorf("made %v", made)
	}
	wantOwner(t, nobodyID, dir+"/a", dir+"/a/b", dir+"/a/b/c")
	wantOwner(t, 0, dir)
	e.want(t, "MakeDir", as(daemonUser), quote(dir+"/a/b"), 409, "already_exists")
	wantOwner(t, nobodyID, dir+"/a/b")
	file := write(t, dir+"/file", "")
	e.want(t, "MakeDir", nil, quote(file), 400, "invalid_argument")
	e.want(t, "MakeDir", nil, quote(file+"/below"), 400, "failed_precondition")
}

func TestMove(t *testing.T) {
	t.Parallel()
	e, dir := startEnvd(t), t.TempDir()
	move := func(from, to string) string {
		data, err := json.Marshal(map[string]string{"source": dir + "/" + from, "destination": dir + "/" + to})
		must(t, err)
		return string(data)
	}
	write(t, dir+"/from", "new")
	write(t, dir+"/to", "old")
	if moved := e.entries(t, "Move", as(nobody), move("from", "to"))[0]; moved["path"] != dir+"/to" || moved["size"] != "3" {
		t.Errorf("moved %v", moved)
	}
	if got := read(t, dir+"/to"); got != "new" {
		t.Errorf("the file has %q", got)
	}
	e.want(t, "Move", nil, move("from", "to"), 404, "not_found")

	e.entries(t, "Move", as(nobody), move("to", "x/y/z"))
	wantOwner(t, nobodyID, dir+"/x", dir+"/x/y")
	wantOwner(t, 0, dir+"/x/y/z") // what is moved stays whose it was

	must(t, os.Mkdir(dir+"/hollow", 0o755))
	e.entries(t, "Move", nil, move("x", "hollow")) // an empty directory is replaced by another
	if got := read(t, dir+"/hollow/y/z"); got != "new" {
		t.Errorf("the file has %q", got)
	}
	must(t, os.Mkdir(dir+"/other", 0o755))
	write(t, dir+"/plain", "")
	e.want(t, "Move", nil, move("other", "hollow"), 400, "failed_precondition")
	e.want(t, "Move", nil, move("plain", "other"), 400, "failed_precondition")
	e.want(t, "Move", nil, move("other", "plain"), 400, "failed_precondition")
	e.want(t, "Move", nil, move("hollow", "hollow/y/below"), 400, "invalid_argument")
	e.want(t, "Move", nil, move("missing", "new/target"), 404, "not_found")
	if _, err := os.Lstat(dir + "/new"); err == nil {
		t.Error("a move that failed has made a directory")
	}
	e.entries(t, "Move", nil, move("plain", "plain"))
}

// TestMoveBetweenFileSystems: what is at the target is replaced there too.
func TestMoveBetweenFileSystems(t *testing.T) {
	t.Parallel()
	e, dir, mounted := startEnvd(t), t.TempDir(), t.TempDir()
	must(t, syscall.Mount("tmpfs", mounted, "tmpfs", 0, "size=1m"))
	t.Cleanup(func() { must(t, syscall.Unmount(mounted, syscall.MNT_DETACH)) })
	write(t, dir+"/from", "new")
	write(t, mounted+"/to", "old")
	e.entries(t, "Move", nil, fmt.Sprintf(`{"source":%q,"destination":%q}`, dir+"/from", mounted+"/to"))
	if got := read(t, mounted+"/to"); got != "new" {
		t.Errorf("the file has %q", got)
	}
	if _, err := os.Lstat(dir + "/from"); err == nil {
		t.Error("the source is still there")
	}
}

func TestRemove(t *testing.T) {
	t.Parallel()
	e, dir := startEnvd(t), t.TempDir()
	must(t, os.MkdirAll(dir+"/tree/a/b", 0o755))
	kept := write(t, dir+"/kept", "")
	must(t, os.Symlink(kept, dir+"/tree/link"))
	for _, path := range []string{dir + "/tree/link", dir + "/tree", dir + "/tree", kept + "/below"} {
		e.want(t, "Remove", nil, quote(path), 200, "{}")
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 || left[0].Name() != "kept" {
		t.Errorf("left are %v, %v", left, err)
	}
	e.want(t, "Remove", nil, quote("/"), 400, "invalid_argument")
	e.want(t, "Remove", nil, quote("/proc"), 400, "invalid_argument")
}

func TestWatchDir(t *testing.T) {
	t.Parallel()
	e, dir := startEnvd(t), t.TempDir()
	must(t, os.Mkdir(dir+"/sub", 0o755))
	for _, recursive := range []bool{false, true} {
		stream := e.stream(t, "/filesystem.Filesystem/WatchDir", nil, fmt.Sprintf(`{"path":%q,"recursive":%t}`, dir, recursive))
		if first, _ := stream.next(); first != `{"start":{}}` {
			t.Errorf("the first message is %s", first)
		}
		want := map[string]bool{"sub/inner CREATE": recursive, "sub/inner WRITE": recursive, "file CREATE": true,
			"file WRITE": true, "file CHMOD": true, "file RENAME": true, "other CREATE": true, "other REMOVE": true}
		write(t, dir+"/sub/inner", "x")
		file := write(t, dir+"/file", "x")
		must(t, os.Chmod(file, 0o600))
		must(t, os.Rename(file, dir+"/other"))
		must(t, os.Remove(dir+"/other"))
		got := map[string]bool{}
		for !got["other REMOVE"] {
			message, last := stream.next()
			var event struct{ Filesystem struct{ Name, Type string } }
			must(t, json.Unmarshal([]byte(message), &event))
			if last {
				t.Fatalf("the stream ends with %s", message)
			}
			got[event.Filesystem.Name+" "+strings.TrimPrefix(event.Filesystem.Type, "EVENT_TYPE_")] = true
		}
		for event, expected := range want {
			if got[event] != expected {
				t.Errorf("recursive %t: %s: %t", recursive, event, got[event])
			}
		}
		must(t, os.Remove(dir+"/sub/inner"))
	}
}

// TestWatchDirOfUploads: an upload looks like a file that is written in place.
func TestWatchDirOfUploads(t *testing.T) {
	t.Parallel()
	e, dir := startEnvd(t), t.TempDir()
	stream := e.stream(t, "/filesystem.Filesystem/WatchDir", nil, quote(dir))
	stream.next()
	for _, name := range []string{"new", "last"} {
		response, data := e.do(t, "POST", at(dir+"/"+name), header("Content-Type", "application/octet-stream"), strings.NewReader("x"))
		if response.StatusCode != http.StatusOK {
			t.Fatalf("status %d: %s", response.StatusCode, data)
		}
	}
	var got []string
	for len(got) == 0 || got[len(got)-1] != "last WRITE" {
		message, last := stream.next()
		var event struct{ Filesystem struct{ Name, Type string } }
		must(t, json.Unmarshal([]byte(message), &event))
		if last {
			t.Fatalf("the stream ends with %s", message)
		}
		got = append(got, event.Filesystem.Name+" "+strings.TrimPrefix(event.Filesystem.Type, "EVENT_TYPE_"))
	}
	want := []string{"new CREATE", "new WRITE", "last CREATE", "last WRITE"}
	if got = slices.DeleteFunc(got, func(event string) bool { return strings.HasSuffix(event, " CHMOD") }); !slices.Equal(got, want) {
		t.Errorf("the events are %q, want %q", got, want)
	}
}

func TestWatchDirEnds(t *testing.T) {
	t.Parallel()
	e, dir := startEnvd(t), t.TempDir()
	const watchDir = "/filesystem.Filesystem/WatchDir"
	e.stream(t, watchDir, nil, quote(write(t, dir+"/file", ""))).ends("invalid_argument")
	e.stream(t, watchDir, nil, quote(dir+"/missing")).ends("not_found")
	e.stream(t, watchDir, as("no-such-user"), quote(dir)).ends("unauthenticated")
	e.stream(t, watchDir, nil, fmt.Sprintf(`{"path":%q,"includeEntry":true}`, dir)).ends("invalid_argument")
	e.stream(t, watchDir, nil, fmt.Sprintf(`{"path":%q,"allowNetworkMounts":true}`, dir)).ends("invalid_argument")
	e.stream(t, watchDir, header("Connect-Timeout-Ms", "50"), quote(dir)).ends("deadline_exceeded")
	e.stream(t, watchDir, header("Connect-Timeout-Ms", "soon"), quote(dir)).ends("invalid_argument")

	must(t, os.Mkdir(dir+"/gone", 0o755))
	stream := e.stream(t, watchDir, header("Keepalive-Ping-Interval", "1"), quote(dir+"/gone"))
	for {
		if message, _ := stream.next(); message == `{"keepalive":{}}` {
			break
		}
	}
	must(t, os.Remove(dir+"/gone"))
	if message, _ := stream.next(); message != `{"filesystem":{"name":".","type":"EVENT_TYPE_REMOVE"}}` {
		t.Errorf("the event is %s", message)
	}
	stream.ends("")
}

func TestWatchers(t *testing.T) {
	t.Parallel()
	e, dir := startEnvd(t), t.TempDir()
	create := func() (id string) {
		t.Helper()
		status, data := e.call(t, "CreateWatcher", nil, fmt.Sprintf(`{"path":%q,"recursive":true}`, dir))
		var made struct{ WatcherID string }
		must(t, json.Unmarshal([]byte(data), &made))
		if status != http.StatusOK || made.WatcherID == "" {
			t.Fatalf("%d %s", status, data)
		}
		return fmt.Sprintf(`{"watcherId":%q}`, made.WatcherID)
	}
	watcher := create()
	e.want(t, "GetWatcherEvents", nil, watcher, 200, "{}")
	must(t, os.Mkdir(dir+"/sub", 0o755))
	event := func(want string) {
		t.Helper()
		wait.Until(t, "the event "+want, func() bool {
			_, data := e.call(t, "GetWatcherEvents", nil, watcher)
			return strings.Contains(data, want)
		})
	}
	event(`{"name":"sub","type":"EVENT_TYPE_CREATE"}`)
	write(t, dir+"/sub/file", "x") // the new directory is watched now
	event(`{"name":"sub/file","type":"EVENT_TYPE_WRITE"}`)
	e.want(t, "RemoveWatcher", nil, watcher, 200, "{}")
	e.want(t, "RemoveWatcher", nil, watcher, 404, "not_found")
	e.want(t, "GetWatcherEvents", nil, watcher, 404, "not_found")
	e.want(t, "CreateWatcher", nil, quote(dir+"/sub/file"), 400, "invalid_argument")
	e.want(t, "CreateWatcher", nil, quote(dir+"/missing"), 404, "not_found")
	e.want(t, "CreateWatcher", nil, fmt.Sprintf(`{"path":%q,"includeEntry":true}`, dir), 400, "invalid_argument")

	first := create()
	for range 31 {
		create()
	}
	e.want(t, "CreateWatcher", nil, quote(dir), 429, "resource_exhausted")
	e.want(t, "RemoveWatcher", nil, first, 200, "{}")
	create() // and execd ends all of them
}

// TestWatcherLosesEvents: more than are kept is an error, and no silence.
func TestWatcherLosesEvents(t *testing.T) {
	t.Parallel()
	e, dir := startEnvd(t), t.TempDir()
	_, data := e.call(t, "CreateWatcher", nil, quote(dir))
	name := strings.Repeat("n", 200)
	for i := range 8000 { // of more than 1 MiB together
		must(t, os.Mkdir(filepath.Join(dir, fmt.Sprint(i, name)), 0o700))
	}
	wait.Until(t, "the loss is reported", func() bool {
		status, answer := e.call(t, "GetWatcherEvents", nil, data)
		return status == http.StatusInternalServerError && strings.Contains(answer, "events were lost")
	})
	e.want(t, "GetWatcherEvents", nil, data, 500, "internal")
}

// TestFilesystemActivity: what changes files is in the list of operations.
func TestFilesystemActivity(t *testing.T) {
	t.Parallel()
	e, dir := startEnvd(t), t.TempDir()
	e.entries(t, "MakeDir", header("User-Agent", "client", "X-EXECD-KEY-NAME", "some%20key"), quote(dir+"/made"))
	e.want(t, "Remove", nil, quote(dir+"/made"), 200, "{}")
	e.do(t, "POST", "/files?path="+dir+"/up", header("Content-Type", "application/octet-stream"), strings.NewReader("x"))
	e.do(t, "GET", "/files?path="+dir+"/up", nil, nil)
	_, data := (&envd{strings.TrimSuffix(e.url, e2b.Prefix), e.client}).do(t, "GET", "/activity", nil, nil)
	var list struct {
		Entries []struct{ Kind, State, Text, Key, Client string }
	}
	must(t, json.Unmarshal(data, &list))
	got := []string{}
	for _, entry := range list.Entries {
		got = append(got, strings.Join([]string{entry.Kind, entry.State, strings.TrimPrefix(entry.Text, dir), entry.Key}, " "))
	}
	want := []string{"mkdir succeeded /made some key", "delete succeeded /made ", "upload succeeded /up ", "download succeeded /up "}
	if !slices.Equal(got, want) {
		t.Errorf("the list has %q, want %q", got, want)
	}
}
