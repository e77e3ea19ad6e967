package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	sandbox "sandbox.internal/clients/go"
)

// maxAccounts bounds how many bytes of a sandbox's list of users or groups are read.
const maxAccounts = 1 << 20

// account is a user or a group: a number, or a name that the sandbox has a number for.
type account struct {
	name   string
	number *int64
}

// parseAccount reads a name or a number.
func parseAccount(text string) (account, error) {
	if number, err := strconv.ParseUint(text, 10, 32); err == nil {
		return account{text, new(int64(number))}, nil
	}
	first := strings.TrimLeft(text, "_abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
	if first == text || strings.ContainsAny(text, ":/ \t\r\n\x00") {
		return account{}, usageErrorf("user: must be USER or USER:GROUP, names or numbers, not %q", text)
	}
	return account{name: text}, nil
}

// parseUser reads USER[:GROUP]. Both are empty when the text is.
func parseUser(text string) (user, group account, err error) {
	if text == "" {
		return account{}, account{}, nil
	}
	name, rest, both := strings.Cut(text, ":")
	if user, err = parseAccount(name); err == nil && both {
		group, err = parseAccount(rest)
	}
	return user, group, err
}

// ids returns the numbers of the user and the group to run as, nil where the daemon chooses. Names
// are those of /etc/passwd and /etc/group in the sandbox; the group of a user who is given by name
// alone is the one that /etc/passwd has for him.
func (p program) ids(ctx context.Context, box *sandbox.Sandbox) (uid, gid *int64, err error) {
	user, group, err := parseUser(p.user)
	if err != nil {
		return nil, nil, err
	}
	uid, gid = user.number, group.number
	if user.name != "" && uid == nil {
		fields, err := lookUp(ctx, box, "/etc/passwd", "user", user.name, 4)
		if err != nil {
			return nil, nil, err
		}
		uid = fields[0]
		if group.name == "" {
			gid = fields[1]
		}
	}
	if group.name != "" && gid == nil {
		fields, err := lookUp(ctx, box, "/etc/group", "group", group.name, 3)
		if err != nil {
			return nil, nil, err
		}
		gid = fields[0]
	}
	return uid, gid, nil
}

// lookUp returns the numbers from the third field up to the last one of the first line in a file of
// accounts that begins with a name.
func lookUp(ctx context.Context, box *sandbox.Sandbox, file, kind, name string, last int) ([]*int64, error) {
	content, err := box.Files.Open(ctx, file, nil)
	if errors.Is(err, sandbox.ErrNotFound) {
		return nil, fmt.Errorf("user: the sandbox has no %s: give a number in place of %q", file, name)
	}
	if err != nil {
		return nil, fmt.Errorf("user: read %s: %w", file, err)
	}
	defer func() { _ = content.Close() }()
	lines := bufio.NewScanner(io.LimitReader(content, maxAccounts))
	lines.Buffer(nil, maxAccounts)
	for lines.Scan() {
		fields := strings.Split(lines.Text(), ":")
		if fields[0] != name || len(fields) < last {
			continue
		}
		var numbers []*int64
		for _, field := range fields[2:last] {
			number, err := strconv.ParseUint(field, 10, 32)
			if err != nil {
				return nil, fmt.Errorf("user: %s in the sandbox has no valid number for %q", file, name)
			}
			numbers = append(numbers, new(int64(number)))
		}
		return numbers, nil
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("user: read %s: %w", file, err)
	}
	return nil, fmt.Errorf("user: %s in the sandbox has no %s %q", file, kind, name)
}
