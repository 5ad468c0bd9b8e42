"""Functions that only compute, by dialect: those for which the parser may have no class of its own.

From the function references of the databases. A function that reads files, settings or other sessions, waits, writes or
runs text has no place here; what is missing can be named with the option ``functions``.
"""

from __future__ import annotations

import re
from typing import Final

from lgov_core.policies.options import names as words

#: Of standard SQL, or by the same name and meaning in most databases.
EVERYWHERE: Final = frozenset(
    words(
        """
    abs acos any_value array_agg array_length ascii asin atan atan2 avg bit_and bit_count bit_length bit_or bit_xor bool_and
    bool_or cardinality cbrt ceil ceiling char_length character_length chr coalesce concat concat_ws corr cos cosh cot count
    covar_pop covar_samp cume_dist current_date current_time current_timestamp date date_add date_diff date_format date_part
    date_sub date_trunc dateadd datediff day dayname dayofmonth dayofweek dayofyear degrees dense_rank ends_with every exp
    extract first_value floor format from_unixtime greatest grouping grouping_id hex hour if ifnull iif initcap instr isnull
    json_agg json_array json_exists json_object json_query json_value lag last_day last_value lcase lead least left len
    length listagg ln localtime localtimestamp locate log log10 log1p log2 lower lpad ltrim max md5 median min minute mod
    mode month monthname months_between now nth_value ntile nullif nvl nvl2 octet_length overlay percent_rank
    percentile_cont percentile_disc pi position pow power quarter radians rand random rank regexp_count regexp_instr
    regexp_like regexp_replace regexp_substr regr_avgx regr_avgy regr_count regr_intercept regr_r2 regr_slope regr_sxx
    regr_sxy regr_syy repeat replace reverse right round row_number rpad rtrim second sign sin sinh soundex space split_part
    sqrt starts_with stddev stddev_pop stddev_samp string_agg substr substring sum tan tanh to_char to_date to_json
    to_number to_timestamp today translate trim trunc truncate try_cast ucase unhex upper uuid var_pop var_samp variance
    week week_of_year weekday width_bucket year
    """
    )
)

#: Further ones of each dialect.
HARMLESS: Final = {
    "sqlite": frozenset(
        words(
            """
            acosh asinh atanh bm25 changes char datetime decimal decimal_add decimal_mul decimal_sub decimal_sum
            generate_series glob group_concat highlight json json_array_length json_each json_error_position json_extract
            json_group_array json_group_object json_insert json_patch json_pretty json_quote json_remove json_replace
            json_set json_tree json_type json_valid jsonb jsonb_array jsonb_each jsonb_extract jsonb_group_array
            jsonb_group_object jsonb_insert jsonb_object jsonb_patch jsonb_remove jsonb_replace jsonb_set jsonb_tree
            julianday last_insert_rowid like likelihood likely percentile printf quote randomblob regexp regexpi snippet
            strftime subtype time timediff total total_changes typeof unicode unistr unistr_quote unixepoch unlikely
            zeroblob
            """
        )
    ),
    "postgres": frozenset(
        words(
            """
            abbrev age area array_append array_cat array_dims array_fill array_lower array_ndims array_position
            array_positions array_prepend array_remove array_replace array_sample array_shuffle array_sum array_to_json
            array_to_string array_to_tsvector array_upper box broadcast btrim casefold center cidr circle clock_timestamp
            convert_from convert_to cosine_distance crc32 crypt cube daitch_mokotoff date_bin date_subtract daterange decode
            diagonal diameter digest div dmetaphone earth_distance encode erf erfc factorial family first gcd
            gen_random_uuid gen_salt generate_series generate_subscripts get_bit get_byte height histogram hmac host
            hostmask inet inet_merge inet_same_family inner_product int4range int8range isclosed isempty isfinite isopen
            json_array_elements json_array_elements_text json_array_length json_arrayagg json_build_array json_build_object
            json_each json_each_text json_extract_path json_extract_path_text json_object_agg json_object_keys
            json_objectagg json_populate_record json_populate_recordset json_scalar json_serialize json_strip_nulls
            json_table json_to_record json_to_recordset json_typeof jsonb_agg jsonb_array_elements jsonb_array_elements_text
            jsonb_array_length jsonb_build_array jsonb_build_object jsonb_concat jsonb_each jsonb_each_text
            jsonb_extract_path jsonb_extract_path_text jsonb_insert jsonb_object jsonb_object_agg jsonb_object_keys
            jsonb_path_exists jsonb_path_match jsonb_path_query jsonb_path_query_array jsonb_path_query_first
            jsonb_populate_record jsonb_populate_recordset jsonb_pretty jsonb_set jsonb_set_lax jsonb_strip_nulls
            jsonb_to_record jsonb_to_recordset jsonb_typeof justify_days justify_hours justify_interval l2_distance last lcm
            levenshtein line ll_to_earth lower_inc lower_inf lseg make_date make_interval make_time make_timestamp
            make_timestamptz masklen metaphone min_scale multirange netmask network normalize npoints num_nonnulls num_nulls
            numnode numrange parse_ident path phraseto_tsquery plainto_tsquery point polygon querytree quote_ident
            quote_literal quote_nullable radius random_normal range_agg range_intersect_agg range_merge regexp_match
            regexp_matches regexp_split_to_array regexp_split_to_table row row_to_json scale set_bit set_byte set_masklen
            setweight sha224 sha256 sha384 sha512 show_trgm similarity slope st_area st_asgeojson st_astext st_buffer
            st_centroid st_contains st_distance st_distancesphere st_dwithin st_geogpoint st_geomfromtext st_intersection
            st_intersects st_length st_makepoint st_point st_setsrid st_transform st_within st_x st_y statement_timestamp
            strict_word_similarity string_to_array string_to_table strip strpos substring_index text time_bucket timeofday
            timezone to_ascii to_bin to_hex to_jsonb to_oct to_tsquery to_tsvector transaction_timestamp trim_array
            trim_scale ts_delete ts_filter ts_headline ts_rank ts_rank_cd tsquery_phrase tsrange tstzrange tsvector_to_array
            unaccent unistr unnest upper_inc upper_inf uuid_generate_v4 uuidv4 uuidv7 websearch_to_tsquery width
            word_similarity xmlagg xmlconcat xmlelement xmlexists xmlforest xpath xpath_exists
            """
        )
    ),
    "redshift": frozenset(
        words(
            """
            add_months approximate array array_concat array_flatten bpchar bpcharcmp btrim can_json_parse charindex checksum
            convert_timezone date_cmp date_subtract decode dexp dlog1 dlog10 farmfingerprint64 fnv_hash func_sha1
            get_array_length getdate hll hll_cardinality hll_combine interval_cmp is_array is_object is_scalar is_valid_json
            is_valid_json_array json_array_length json_extract_array_element_text json_extract_path_text json_parse
            json_serialize json_typeof listaggdistinct lower_attribute_names next_day object object_transform
            ratio_to_report sha1 sha2 split_to_array st_distancesphere st_geogpoint strtol subarray sysdate text timeofday
            to_timestamptz to_varchar
            """
        )
    ),
    "mysql": frozenset(
        words(
            """
            add_months adddate addtime aes_decrypt aes_encrypt bin bin_to_uuid char charset coercibility collation compress
            connection_id conv convert_tz crc32 curdate current_user curtime database elt export_set extractvalue field
            find_in_set format_bytes found_rows from_base64 from_days geomfromtext get_format group_concat inet6_aton
            inet6_ntoa inet_aton inet_ntoa insert interval is_ipv4 is_ipv6 is_uuid json_array_append json_array_insert
            json_arrayagg json_compact json_contains json_contains_path json_depth json_detailed json_extract json_insert
            json_keys json_length json_loose json_merge json_merge_patch json_merge_preserve json_normalize json_objectagg
            json_overlaps json_pretty json_quote json_remove json_replace json_schema_valid json_search json_set
            json_storage_size json_table json_type json_unquote json_valid last_insert_id linestring load_seconds make_set
            makedate maketime match microsecond mid name_const natural_sort_key oct ord period_add period_diff point polygon
            quote regexp row_count schema sec_to_time sha sha1 sha2 st_area st_asgeojson st_astext st_contains st_distance
            st_distance_sphere st_geomfromtext st_intersects st_within st_x st_y std str_to_date strcmp subdate
            substring_index subtime sysdate time time_format time_to_sec timediff timestamp timestampadd timestampdiff
            to_base64 to_days to_seconds uncompress uncompressed_length unix_timestamp utc_date utc_time utc_timestamp
            uuid_to_bin values version weekofyear weight_string yearweek
            """
        )
    ),
    "doris": frozenset(
        words(
            """
            approx_count_distinct array_contains array_distinct array_join array_size array_sort array_sum bitmap_count
            bitmap_union bitmap_union_count collect_list collect_set days_add days_sub explode_split get_json_double
            get_json_int get_json_string hll_union_agg hours_add minutes_add months_add ndv percentile_approx
            split_by_string time_slice to_bitmap weeks_add years_add
            """
        )
    ),
    "tsql": frozenset(
        words(
            """
            point
            approx_count_distinct approx_percentile_cont approx_percentile_disc atn2 binary_checksum cast char charindex
            checksum checksum_agg choose compress convert count_big current_timezone current_timezone_id current_user
            datalength date_bucket datediff_big datefromparts datename datepart datetime2fromparts datetimefromparts
            datetimeoffsetfromparts datetrunc decompress difference edit_distance edit_distance_similarity eomonth
            error_line error_message error_number exist formatmessage generate_series get_bit getdate getutcdate hashbytes
            isdate isjson isnumeric jaro_winkler_similarity json_arrayagg json_modify json_objectagg json_path_exists
            left_shift nchar newid newsequentialid nodes openjson parse parsename patindex quotename regexp_matches
            regexp_split_to_table replicate right_shift rowcount_big set_bit smalldatetimefromparts square stastext
            stcontains stdev stdevp stdistance str string_escape string_split stuff switchoffset sysdatetime
            sysdatetimeoffset sysutcdatetime timefromparts todatetimeoffset try_convert try_parse unicode value var varp
            """
        )
    ),
    "oracle": frozenset(
        words(
            """
            classifier match_number next prev score
            add_months approx_count approx_count_distinct approx_median approx_percentile approx_rank approx_sum asciistr
            bin_to_num bit_and_agg bit_or_agg bitand cast chartorowid checksum cluster_id collect compose connect_by_root
            convert corr_k corr_s dbtimezone decode decompose dump empty_blob empty_clob existsnode feature_value from_tz
            group_id hextoraw instrb iteration_number json_arrayagg json_equal json_mergepatch json_objectagg json_scalar
            json_serialize json_table json_transform kurtosis_pop lengthb lengthc lnnvl max_by min_by nanvl new_time
            next_day nls_initcap nls_lower nls_upper nlssort numtodsinterval numtoyminterval ora_hash percentile presentnnv
            presentv ratio_to_report rawtohex rawtonhex remainder rowidtochar scn_to_timestamp sessiontimezone skewness_pop
            standard_hash stats_mode substrb substrc sys_connect_by_path sys_extract_utc sys_guid sysdate systimestamp
            to_binary_double to_binary_float to_blob to_clob to_dsinterval to_lob to_multi_byte to_nchar to_nclob
            to_single_byte to_timestamp_tz to_yminterval treat tz_offset unistr validate_conversion value vsize wm_concat
            xmlagg xmlelement xmlforest xmlserialize
            """
        )
    ),
    "snowflake": frozenset(
        words(
            """
            classifier match_number next prev
            add_months approx_count_distinct approx_percentile approx_top_k approximate_similarity array_append array_cat
            array_compact array_construct array_construct_compact array_contains array_distinct array_except array_flatten
            array_generate_range array_insert array_intersection array_max array_min array_position array_prepend
            array_remove array_remove_at array_reverse array_size array_slice array_sort array_sum array_to_string
            array_union_agg array_unique_agg arrays_overlap arrays_to_object arrays_zip as_array as_boolean as_char as_date
            as_double as_integer as_number as_object as_varchar base64_decode_string base64_encode bitand
            bitmap_bit_position bitmap_bucket_number bitmap_count bitnot bitor bitshiftleft bitxor booland_agg boolor_agg
            boolxor_agg charindex check_json collate compress conditional_change_event conditional_true_event contains
            convert_timezone count_if date_from_parts dayofweekiso decode div0 div0null editdistance endswith equal_null
            filter flatten generator get get_path getdate greatest_ignore_nulls h3_latlng_to_cell hash hash_agg haversine
            hll hll_accumulate hll_combine hll_estimate iff ilike insert is_array is_boolean is_date is_decimal is_double
            is_integer is_null_value is_object is_varchar jarowinkler_similarity json_extract_path_text kurtosis
            least_ignore_nulls like_all like_any map_contains_key map_keys map_size max_by md5_hex min_by minhash next_day
            nullifzero object_agg object_construct object_construct_keep_null object_delete object_insert object_keys
            object_pick parse_ip parse_json parse_url parse_xml previous_day randstr ratio_to_report reduce regexp
            regexp_extract_all regexp_substr_all regr_valx regr_valy rlike rtrimmed_length seq1 seq2 seq4 seq8 sha1 sha1_hex
            sha2 sha2_hex skew sparse split split_to_table square st_area st_asgeojson st_contains st_distance st_makepoint
            startswith strip_null_value strtok strtok_split_to_table strtok_to_array sysdate time_from_parts time_slice
            timeadd timediff timestamp_from_parts timestamp_ltz_from_parts timestamp_ntz_from_parts timestampadd
            timestampdiff to_array to_binary to_boolean to_decimal to_double to_geography to_object to_time to_timestamp_ltz
            to_timestamp_ntz to_timestamp_tz to_varchar to_variant to_xml transform try_base64_decode_string
            try_hex_decode_string try_parse_json try_to_boolean try_to_date try_to_decimal try_to_double try_to_number
            try_to_numeric try_to_time try_to_timestamp try_to_timestamp_ntz typeof unicode uniform uuid_string
            vector_cosine_similarity vector_inner_product vector_l2_distance weekiso weekofyear xmlget yearofweek
            yearofweekiso zeroifnull zipf
            """
        )
    ),
    "bigquery": frozenset(
        words(
            """
            hll_count.extract hll_count.init hll_count.merge hll_count.merge_partial
            acosh approx_count_distinct approx_quantiles approx_top_count approx_top_sum array array_concat array_concat_agg
            array_first array_last array_reverse array_slice array_to_string asinh atanh bag_of_words bool byte_length
            code_points_to_bytes code_points_to_string collate contains_substr cosine_distance coth countif csc csch
            current_datetime date_bucket date_from_unix_date datetime datetime_add datetime_bucket datetime_diff
            datetime_sub datetime_trunc div edit_distance error euclidean_distance farm_fingerprint float64 format_date
            format_datetime format_time format_timestamp from_base32 from_base64 from_hex generate_array generate_date_array
            generate_timestamp_array generate_uuid ieee_divide int64 is_inf is_nan json_array_append json_array_insert
            json_extract json_extract_array json_extract_scalar json_extract_string_array json_keys json_query_array
            json_remove json_set json_strip_nulls json_type json_value_array justify_days justify_hours justify_interval
            lax_bool lax_float64 lax_int64 lax_string logical_and logical_or make_interval max_by min_by net.host normalize
            normalize_and_casefold offset ordinal parse_bignumeric parse_date parse_datetime parse_json parse_numeric
            parse_time parse_timestamp range range_bucket range_contains range_end range_start regexp_contains
            regexp_extract regexp_extract_all safe_add safe_cast safe_convert_bytes_to_string safe_divide safe_multiply
            safe_negate safe_offset safe_ordinal safe_subtract search sec sech sha1 sha256 sha512 split st_area st_asgeojson
            st_astext st_centroid st_contains st_distance st_dwithin st_geogfromtext st_geogpoint st_intersects st_length
            st_makeline st_within st_x st_y string strpos struct text_analyze time_add time_diff time_sub time_trunc
            timestamp timestamp_add timestamp_diff timestamp_micros timestamp_millis timestamp_seconds timestamp_sub
            timestamp_trunc to_base32 to_base64 to_code_points to_hex to_json_string unicode unix_date unix_micros
            unix_millis unix_seconds unnest
            """
        )
    ),
    "duckdb": frozenset(
        words(
            """
            acosh age aggregate apply approx_count_distinct approx_quantile arbitrary arg_max arg_max_null arg_min
            arg_min_null array_aggr array_append array_cat array_concat array_contains array_cosine_similarity
            array_cross_product array_dims array_distance array_distinct array_extract array_fill array_filter array_has
            array_has_all array_has_any array_indexof array_inner_product array_intersect array_lower array_ndims
            array_position array_positions array_prepend array_push_back array_reduce array_remove array_replace
            array_resize array_reverse array_slice array_sort array_to_json array_to_string array_to_tsvector
            array_transform array_unique array_upper array_value array_zip asinh atanh bar base64 bin bit_position bitstring
            bitstring_agg btrim century clock_timestamp constant_or_null contains convert_from convert_to count_if
            count_star countif current_localtimestamp damerau_levenshtein date_bin date_subtract datepart daterange datesub
            datetrunc decade decode div editdist3 element_at encode entropy enum_code enum_first enum_last enum_range epoch
            epoch_ms epoch_ns epoch_us equi_width_bins era erf error even factorial favg filter first flatten fmod
            formatreadabledecimalsize formatreadablesize from_base64 from_binary from_hex from_json fsum gamma gcd
            generate_series generate_subscripts geomean geometric_mean get_bit get_current_time get_current_timestamp
            grade_up greatest_common_divisor group_concat hamming hash histogram histogram_exact host icu_sort_key
            ilike_escape int4range int8range isempty isfinite isinf isnan isodow isoyear jaccard jaro_similarity
            jaro_winkler_similarity json json_array_elements json_array_elements_text json_array_length json_build_array
            json_build_object json_contains json_each json_each_text json_extract json_extract_path json_extract_path_text
            json_extract_string json_group_array json_group_object json_group_structure json_keys json_merge_patch
            json_object_agg json_object_keys json_populate_record json_pretty json_strip_nulls json_structure json_to_record
            json_to_recordset json_transform json_tree json_type json_typeof json_valid jsonb_agg jsonb_array_elements
            jsonb_array_elements_text jsonb_array_length jsonb_build_array jsonb_build_object jsonb_each jsonb_each_text
            jsonb_extract_path jsonb_extract_path_text jsonb_insert jsonb_object jsonb_object_agg jsonb_object_keys
            jsonb_path_exists jsonb_path_match jsonb_path_query jsonb_path_query_array jsonb_path_query_first jsonb_pretty
            jsonb_set jsonb_strip_nulls jsonb_to_record jsonb_to_recordset jsonb_typeof julian justify_days justify_hours
            justify_interval kahan_sum kurtosis kurtosis_pop last lcm least_common_multiple left_grapheme levenshtein lgamma
            like_escape list list_aggr list_aggregate list_any_value list_append list_apply list_avg list_cat list_concat
            list_contains list_cosine_similarity list_count list_distance list_distinct list_dot_product list_element
            list_extract list_filter list_first list_grade_up list_has list_has_all list_has_any list_histogram list_indexof
            list_inner_product list_intersect list_last list_max list_median list_min list_mode list_pack list_position
            list_prepend list_product list_reduce list_resize list_reverse list_reverse_sort list_select list_slice
            list_sort list_string_agg list_sum list_transform list_unique list_value list_where list_zip lower_inc mad
            make_date make_interval make_time make_timestamp make_timestamptz map map_concat map_contains map_entries
            map_extract map_from_entries map_keys map_values max_by mean microsecond millennium millisecond min_by min_scale
            mismatches multiply named_struct nanosecond netmask nextafter nfc_normalize not_ilike_escape num_nonnulls
            num_nulls numrange ord parse_dirname parse_dirpath parse_filename parse_path phraseto_tsquery plainto_tsquery
            prefix printf product quantile quantile_cont quantile_disc quote_ident quote_literal quote_nullable range
            range_agg reduce regexp_escape regexp_extract regexp_extract_all regexp_full_match regexp_match regexp_matches
            regexp_split_to_array regexp_split_to_table reservoir_quantile right_grapheme roundbankers row row_to_json scale
            sem setseed sha1 sha224 sha256 sha512 signbit similarity skewness split st_area st_asgeojson st_astext st_buffer
            st_centroid st_contains st_distance st_distancesphere st_dwithin st_geogpoint st_geomfromtext st_intersects
            st_length st_makepoint st_point st_setsrid st_transform st_within st_x st_y statement_timestamp stem str_split
            str_split_regex strftime string_split string_split_regex string_to_array string_to_table strip_accents strlen
            strpos strptime struct_extract struct_insert struct_pack subtract suffix sumkahan summary time_bucket timeofday
            timetz_byte_comparable timezone timezone_hour timezone_minute to_ascii to_base to_base64 to_binary to_centuries
            to_days to_decades to_hex to_hours to_jsonb to_microseconds to_milliseconds to_minutes to_months to_quarters
            to_seconds to_tsquery to_tsvector to_weeks to_years transaction_timestamp trim_array trim_list trim_scale
            try_strptime ts_headline ts_rank ts_rank_cd tsrange tstzrange typeof unaccent unbin unicode union_extract
            union_tag union_value unnest unpivot_list upper_inc url_decode url_encode vector_type wavg websearch_to_tsquery
            weekofyear weighted_avg word_similarity xor yearweek
            """
        )
    ),
    "spark": frozenset(
        words(
            """
            add_months aggregate approx_count_distinct approx_percentile array array_append array_compact array_contains
            array_distinct array_except array_insert array_intersect array_join array_max array_min array_position
            array_prepend array_remove array_repeat array_size array_sort array_union arrays_overlap arrays_zip base64
            bigint bin bit_get bitmap_count bround btrim cast char charindex collect_list collect_set contains conv
            convert_timezone count_if count_min_sketch crc32 cube curdate current_timezone date_from_unix_date datepart
            decode double e element_at elt encode endswith equal_null exists explode explode_outer expm1 factorial filter
            find_in_set first flatten forall format_number format_string from_csv from_json from_utc_timestamp from_xml get
            get_json_object getbit hash histogram_numeric hll_sketch_agg hll_sketch_estimate hypot ilike inline inline_outer
            int is_variant_null isnan isnotnull json_array_length json_object_keys json_tuple kurtosis last levenshtein
            luhn_check make_date make_dt_interval make_interval make_timestamp make_ym_interval map map_concat
            map_contains_key map_entries map_filter map_from_arrays map_from_entries map_keys map_values map_zip_with mask
            max_by mean min_by monotonically_increasing_id named_struct nanvl negative next_day parse_json parse_url
            percentile percentile_approx pmod posexplode posexplode_outer positive printf randn randstr reduce regexp
            regexp_extract regexp_extract_all rint rlike rollup schema_of_csv schema_of_json schema_of_variant sec sentences
            sequence session_window sha sha1 sha2 shiftleft shiftright shuffle size skewness slice some sort_array
            spark_partition_id split stack startswith std str_to_map string struct substring_index timestamp
            timestamp_micros timestamp_millis timestamp_seconds timestampadd timestampdiff to_binary to_csv
            to_unix_timestamp to_utc_timestamp to_varchar to_variant_object transform transform_keys transform_values
            try_add try_avg try_divide try_element_at try_multiply try_parse_json try_subtract try_sum try_to_number
            try_to_timestamp try_variant_get typeof unbase64 uniform unix_date unix_micros unix_millis unix_seconds
            unix_timestamp url_decode url_encode variant_get weekofyear window window_time xpath xpath_double xpath_int
            xpath_string xxhash64 zip_with
            """
        )
    ),
    "databricks": frozenset(
        words(
            """
            bitmap_construct_agg charindex collation from_avro getdate h3_boundaryaswkt h3_distance h3_longlatash3 mask
            range sequence st_area st_contains st_distance st_geomfromtext st_point timediff try_aes_decrypt
            """
        )
    ),
    "trino": frozenset(
        words(
            """
            great_circle_distance simplify_geometry st_area st_asbinary st_boundary st_buffer st_centroid st_convexhull
            st_coorddim st_crosses st_difference st_dimension st_disjoint st_endpoint st_envelope st_equals st_geometrytype
            st_intersection st_isempty st_isvalid st_length st_linefromtext st_linestring st_multipoint st_numpoints
            st_overlaps st_perimeter st_pointn st_polygon st_startpoint st_touches st_union st_xmax st_xmin st_ymax st_ymin
            to_spherical_geography geometry_union
            classifier match_number next prev
            all_match any_match approx_count_distinct approx_distinct approx_most_frequent approx_percentile approx_set
            arbitrary array_average array_distinct array_except array_first array_frequency array_has_duplicates
            array_histogram array_intersect array_join array_last array_max array_min array_normalize array_position
            array_remove array_sort array_sum array_union arrays_overlap at_timezone bar beta_cdf bitwise_and
            bitwise_and_agg bitwise_left_shift bitwise_not bitwise_or bitwise_or_agg bitwise_right_shift bitwise_xor
            char2hexint checksum classify codepoint combinations contains contains_sequence cosine_similarity count_if crc32
            current_timezone date_parse day_of_month day_of_week day_of_year dot_product dow doy e element_at
            empty_approx_set entropy filter flatten format_datetime format_number from_base from_base32 from_base64 from_hex
            from_iso8601_date from_iso8601_timestamp from_utf8 geometric_mean great_circle_distance hamming_distance
            histogram hmac_sha256 human_readable_seconds index infinity is_finite is_infinite is_json_scalar is_nan
            jaccard_index json_array_contains json_array_get json_array_length json_extract json_extract_scalar json_format
            json_parse json_size kurtosis last_day_of_month levenshtein_distance longest_common_prefix luhn_check map
            map_agg map_concat map_entries map_filter map_from_entries map_keys map_union map_values map_zip_with max_by
            merge min_by multimap_agg multimap_from_entries murmur3 nan ngrams none_match normal_cdf normalize
            numeric_histogram parse_data_size parse_datetime parse_duration parse_presto_data_size parse_url qdigest_agg
            random_string reduce reduce_agg regexp_extract regexp_extract_all regexp_position regexp_split rgb sequence sha1
            sha256 sha512 shuffle skewness slice split split_to_map split_to_multimap spooky_hash_v2_64 st_area st_asgeojson
            st_astext st_contains st_distance st_geometryfromtext st_intersects st_point st_within st_x st_y strpos strrpos
            tdigest_agg timezone_hour timezone_minute to_base to_base32 to_base64 to_big_endian_64 to_geometry to_hex
            to_ieee754_64 to_iso8601 to_milliseconds to_unixtime to_utf8 transform transform_keys transform_values
            trim_array try typeof unnest url_decode url_encode url_extract_domain url_extract_host url_extract_parameter
            url_extract_path url_extract_port url_extract_protocol url_extract_query value_at_quantile values_at_quantiles
            wilson_interval_lower with_timezone word_stem xxhash64 year_of_week yow zip zip_with
            """
        )
    ),
    "clickhouse": frozenset(
        words(
            """
            accuratecast accuratecastornull add adddays addhours addinterval addminutes addmonths addquarters addseconds
            addweeks addyears age any anyheavy anylast anylastrespectnulls appendtrailingcharifabsent argmax argmin array
            arraywithconstant assumenotnull avgdistinct avgweighted bar base58encode base64decode base64encode basename bin
            bitand bitcount bitnot bitor bitshiftleft bitshiftright bittest bitxor boundingratio byteswap caseinsensitive
            caseswithexpression cast categoricalinformationvalue changeday changehour changemonth changeyear char cityhash64
            clamp concatassumeinjective concatwithseparator contingency countdigits countequal countmatches countsubstrings
            covarpop covarsamp cramersv cutfragment cutquerystring cuttofirstsignificantsubdomain cuturlparameter cutwww
            dameraulevenshteindistance datename datesub datetrunc decodeurlcomponent decodexmlcomponent deltasum
            deltasumtimestamp domain domainwithoutwww dotproduct e editdistance empty emptyarraytosingle encodeurlcomponent
            endswith endswithutf8 entropy equals erf erfc exactcount exponentialmovingaverage extractall extractallgroups
            extractallgroupshorizontal extracttextfromhtml extracturlparameter extracturlparameternames extracturlparameters
            factorial farmfingerprint64 farmhash64 firstline firstsignificantsubdomain flatten flattentuple formatdatetime
            formatreadabledecimalsize formatreadablequantity formatreadablesize formatreadabletimedelta formatrow fragment
            fromdayssinceyearzero fromunixtimestamp fromunixtimestamp64milli fuzzbits gcd generate_series generaterandom
            generateuuidv4 generateuuidv7 geodistance geohashdecode geohashencode geotoh3 geotos2 greatcircleangle
            greatcircledistance greater greatercircledistance greaterorequals grouparray grouparrayinsertat
            grouparrayintersect grouparraylast grouparraymovingavg grouparraymovingsum grouparraysample grouparraysorted
            groupbitand groupbitmap groupbitor groupbitxor groupconcat groupuniqarray geohashesinbox h3distance h3getresolution
            h3isvalid h3kring h3tochildren h3togeo h3togeoboundary h3toparent h3tostring halfmd5 has
            hasall hasany hassubsequence hassubstr hastoken hastokencaseinsensitive histogram hypot identity idnaencode
            ifnotfinite ignore ilike in indexof initcaputf8 initializeaggregation intdiv intdivorzero intervallengthsum
            intexp10 intexp2 inthash32 inthash64 inttimestamp ipv4cidrtorange ipv4numtostring ipv4stringtonum
            ipv6numtostring ipv6stringtonum isconstant isdecimaloverflow isfinite isinfinite isipaddressinrange isipv4string
            isipv6string isnan isnotnull isnullable isvalidjson isvalidutf8 javahash jumpconsistenthash kostikconsistenthash
            kurtpop kurtsamp l1distance l1norm l2distance l2norm laginframe largesttrianglethreebuckets latesttime lcm
            leadinframe leftpad leftpadutf8 leftutf8 lengthutf8 less lessorequals levenshteindistance lgamma like
            linear_regression linfdistance linfnorm lowcardinalityindices lowcardinalitykeys lowerutf8 makedate makedatetime
            makedatetime64 mannwhitneyutest map match materialize max2 maxintersections maxintersectionsposition maxmap
            mediandeterministic medianexact mediantdigest metrohash64 min2 minmap minus modulo moduloorzero mortondecode
            mortonencode moving_average multifuzzymatchany multiif multimatchany multimatchanyindex multiply
            multisearchallpositions multisearchany multisearchanycaseinsensitive multisearchfirstindex
            multisearchfirstposition murmurhash2_64 murmurhash3_128 murmurhash3_32 murmurhash3_64 negate neighbor netloc
            ngramdistance ngrams ngramsearch ngramsimhash nonnegativederivative normalizedquery normalizequery
            normalizeutf8nfc normalizeutf8nfkc not notempty notequals notilike notin notlike now64 nowinblock null number
            numbers numbers_mt parsedatetime parsedatetime32besteffort parsedatetime64besteffort parsedatetimebesteffort
            parsedatetimebesteffortornull parsedatetimebesteffortorzero parsedatetimeornull parsereadablesize path pathfull
            plus pointinellipses pointinpolygon polygonareacartesian port positioncaseinsensitive
            positioncaseinsensitiveutf8 positionutf8 proportionsztest protocol punycodeencode quantile quantilebfloat16
            quantiledd quantiledeterministic quantileexact quantileexactexclusive quantileexacthigh quantileexactlow
            quantileexactweighted quantilegk quantileinterpolatedweighted quantiles quantilesexact quantilesgk
            quantilestdigest quantilestiming quantiletdigest quantiletdigestweighted quantiletiming quantiletimingweighted
            querystring querystringandfragment rand32 rand64 randbernoulli randbinomial randcanonical randconstant
            randexponential randnormal randomfixedstring randomprintableascii randomstring randomstringutf8 randpoisson
            randuniform range rankcorr regexpextract regexpquotemeta reinterpret reinterpretasstring replaceall replaceone
            replaceregexpall replaceregexpone retention reverseutf8 rightpad rightpadutf8 rightutf8 roundage roundbankers
            rounddown roundduration roundtoexp2 rownumberinallblocks rownumberinblock runningaccumulate runningconcurrency
            runningdifference runningdifferencestartingwithfirstvalue sequencecount sequencematch sequencenextnode
            seriesdecomposestl seriesfft seriesoutliersdetecttukey seriesperioddetectfft sha1 sha224 sha256 sha512 sigmoid
            simplelinearregression singlevalueornull siphash128 siphash64 skewpop skewsamp sparkbar splitbychar
            splitbynonalpha splitbyregexp splitbystring splitbywhitespace startswith stddevpop stddevsamp
            stochasticlinearregression stringjaccardindex studentttest sub substringindex substringindexutf8 substringutf8
            subtractdays subtracthours subtractinterval subtractminutes subtractmonths subtractquarters subtractseconds
            subtractweeks subtractyears sumcount sumdistinct sumkahan summap summapfiltered sumwithoverflow synonyms tgamma
            theilsu throwif tid timediff timeslot timeslots timestamp timestamp_diff timezone timezoneof timezoneoffset
            todayofmonth tokens topk topkweighted topleveldomain transform trimboth trimleft trimright trybase64decode tuple
            tupleconcat tupledivide tupleelement tuplehammingdistance tupleminus tuplemultiply tuplenegate tupleplus
            tupletonamevaluepairs unbin uniq uniqcombined uniqcombined64 uniqexact uniqhll12 uniqtheta uniqthetasketch
            uniqupto upperutf8 urlhierarchy urlpathhierarchy utctimestamp values varpop varsamp visitparamextractbool
            visitparamextractfloat visitparamextractint visitparamextractraw visitparamextractstring visitparamextractuint
            visitparamhas welchttest windowfunnel wkt xor xxhash32 xxhash64 yesterday zeros
            """
        )
    ),
}

#: The same, by the form of the name.
HARMLESS_FORMS: Final = {
    "clickhouse": re.compile(
        r"to(?:u?int\d+|float\d+|decimal\d+|date|date32|datetime|datetime32|datetime64|string|fixedstring|uuid|ipv[46]|bool|year"
        r"|quarter|month|week|day|hour|minute|second|millisecond|startof\w+|lastdayof\w+|monday|isoyear|isoweek|yyyymm|yyyymmdd"
        r"|yyyymmddhhmmss|yearweek|unixtimestamp\w*|relative\w+num|dayof\w+|timezone|interval\w+|lowcardinality|nullable"
        r"|typename|columntypename|jsonstring|validutf8|stringcuttozero|time|daynum|modifiedjulianday|bool|numberof\w+)"
        r"(?:ornull|orzero|ordefault)?"
        r"|json(?:extract\w*|has|length|key|keys|type|value|query|_value|_query|_exists|array\w*|all\w*paths\w*|mergepatch|dynamicpaths)"
        r"|simplejson\w+|(?:array|map|tuple|bitmap)[a-z0-9]+|reinterpretas\w+"
        r"|(?:count|sum|avg|min|max|any|anylast|argmin|argmax|uniq|uniqexact|uniqcombined|quantile|quantiles|quantileexact"
        r"|quantiletdigest|median|grouparray|groupuniqarray|topk|stddevpop|stddevsamp|varpop|varsamp|sumwithoverflow"
        r"|quantiletiming|summap|first_value|last_value|corr|covarpop|covarsamp|entropy|windowfunnel|retention)"
        r"(?:if|array|map|state|merge|foreach|distinct|ornull|ordefault|resample|simplestate|argmin|argmax)+"
    ),
}
