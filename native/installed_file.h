/* Is a file of the host, which a container has mounted, as the driver installed it? */
#ifndef INSTALLED_FILE_H
#define INSTALLED_FILE_H

/* Compare a file with what is wanted of it, `Adler-32:SIZE:PATH`: eight digits in lower-case hexadecimal, and bytes in decimal.
 *
 * Gives NULL, or what is wrong with the file; *path is the file's then. Where `wanted` itself is no such text, *path is NULL. */
const char *file_defect(const char *wanted, const char **path);

#endif
