import { SandboxError } from "./errors.js";
import type { components } from "./gen/execd.js";

interface Mode {
  /** One to four octal digits: `"644"` and `"0644"` are rw-r--r--. */
  mode?: string;
}

/** What has a mode, as people write it. */
export type WithMode<T> = Omit<T, "mode"> & Mode;

/** Owner, group and mode. What is left out stays as it is. */
export type Permission = WithMode<components["schemas"]["Permission"]>;

/**
 * Permissions as the contract has them: the mode's octal digits as a decimal number. A number is refused, for 0o644 is 420, which
 * the contract reads as other permissions.
 */
export function permissionOf<P extends Mode>(permission: P): Omit<P, "mode"> & { mode?: number } {
  const { mode, ...rest } = permission;
  if (mode === undefined) return rest;
  if (typeof mode !== "string" || !/^[0-7]{1,4}$/.test(mode)) {
    const rule = 'must be a string of one to four octal digits, such as "644" or "0755"';
    throw new SandboxError("invalid", `mode: ${rule}, not ${JSON.stringify(mode)}`);
  }
  return { ...rest, mode: Number(mode) };
}
